"""Number formats of towers: what is rounded, what stays float32, and that no global switch stays changed."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bolt.clip import precision as precisions
from bolt.clip.backbone import Backbone
from bolt.clip.precision import (
    UnsupportedPrecision,
    check_precision,
    forward_pass,
    plain_torch,
    training_step,
    used_precision,
)
from bolt.protocol import Precision
from bolt.training.finetune import finetune_source
from bolt.training.loop import TrainingRecipe
from bolt.training.meta import MetaRecipe, MetaTask, Variant, meta_learn

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class _Products(TorchDispatchMode):
    """Records the number formats of the matrix products inside the ``with`` block."""

    def __init__(self) -> None:
        super().__init__()
        self.formats: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.overloadpacket.__name__ in ("linear", "mm", "addmm", "bmm", "convolution", "conv2d"):
            self.formats.add(next(one.dtype for one in reversed(args) if isinstance(one, Tensor)))
        return func(*args, **(kwargs or {}))


def formats_of(run: Callable[[], object]) -> set[torch.dtype]:
    """Return the number formats of the matrix products in ``run``."""
    with _Products() as products:
        run()
    return products.formats


def _pixels(backbone: Backbone, count: int = 4) -> Tensor:
    side = backbone.image_size
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_a_backbone_computes_in_bfloat16_and_gives_float32_features(backbone: Backbone) -> None:
    halved, pixels = backbone.at("bfloat16"), _pixels(backbone)
    assert formats_of(lambda: halved.encode_images(pixels)) == {torch.bfloat16}
    features_BD = halved.encode_images(pixels)
    assert features_BD.dtype == torch.float32
    exact_BD = backbone.encode_images(pixels)
    assert 0 < (features_BD - exact_BD).norm() / exact_BD.norm() < 0.03


def test_a_backbone_in_another_format_shares_its_tensors_and_leaves_it_unchanged(backbone: Backbone) -> None:
    halved = backbone.at("bfloat16")
    assert halved is backbone.at("bfloat16")
    assert backbone.precision is None
    assert halved.precision == halved.tower.copy().precision == halved.text_tower.copy().precision == "bfloat16"
    for own, shared in zip(backbone.tower.parameters(), halved.tower.parameters(), strict=True):
        assert own is shared
    assert backbone.at(None) is backbone


def test_float32_is_what_a_cpu_computes_in_without_a_choice(backbone: Backbone) -> None:
    pixels = _pixels(backbone)
    assert used_precision(None, "cpu") == "float32"
    assert torch.equal(backbone.at("float32").encode_images(pixels), backbone.encode_images(pixels))


@pytest.mark.parametrize(("capability", "default"), [((7, 5), "float32"), ((8, 0), "tf32"), ((9, 0), "tf32")])
def test_the_default_of_a_gpu(capability: tuple[int, int], default: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    precisions._has_tf32.cache_clear()
    try:
        assert used_precision(None, GPU) == default
        for wanted in ("tf32", "bfloat16"):
            if default == "tf32":
                check_precision(wanted, GPU)
            else:
                with pytest.raises(UnsupportedPrecision, match=wanted):
                    check_precision(wanted, GPU)
    finally:
        precisions._has_tf32.cache_clear()


def test_a_cpu_refuses_tf32_and_takes_the_others(backbone: Backbone) -> None:
    with pytest.raises(UnsupportedPrecision, match="tf32"):
        backbone.at("tf32")
    check_precision("float32", CPU)
    check_precision("bfloat16", CPU)


def _switches() -> tuple[object, ...]:
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,  # type: ignore[attr-defined]
        torch.are_deterministic_algorithms_enabled(),
    )


@pytest.mark.parametrize(("wanted", "switch"), [("float32", "ieee"), ("tf32", "tf32"), ("bfloat16", "tf32")])
def test_the_switches_of_a_gpu_are_set_for_a_step_and_put_back(wanted: Precision, switch: str) -> None:
    before = _switches()
    with training_step(wanted, GPU):
        assert _switches() == (switch, switch, True)
        if wanted != "bfloat16":  # without a GPU, autocast for a GPU warns
            with forward_pass(wanted, GPU):
                assert _switches() == (switch, switch, True)
        assert _switches() == (switch, switch, True)
    assert _switches() == before
    with pytest.raises(ZeroDivisionError), training_step(wanted, GPU):
        raise ZeroDivisionError
    assert _switches() == before


def test_products_that_a_caller_rounds_are_exact_inside_a_block() -> None:
    products = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("medium")
    try:
        with plain_torch():
            assert [each.fp32_precision for each in products] == ["ieee", "ieee"]
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_block_leaves_no_rounding_that_a_caller_has_set_for_all_products() -> None:
    group = cast(Any, torch.backends.mkldnn)
    group.fp32_precision = "bf16"
    try:
        with plain_torch():
            assert group.conv.fp32_precision == "ieee"
        assert group.conv.fp32_precision == "bf16"
    finally:
        group.fp32_precision = "none"
    assert group.conv.fp32_precision == "none"


def test_the_switches_of_a_gpu_stay_on_a_cpu() -> None:
    before = _switches()
    with training_step("bfloat16", CPU), forward_pass("bfloat16", CPU):
        assert _switches() == before


def test_a_source_is_fine_tuned_in_bfloat16_with_float32_weights(backbone: Backbone) -> None:
    pixels, labels_N = _pixels(backbone), torch.tensor([0, 1, 0, 1])
    head_CD = torch.nn.functional.normalize(torch.randn(2, backbone.embed_dim), dim=-1)
    recipe = TrainingRecipe(epochs=1, batch_size=2, learning_rate=1e-3)

    def train(precision: Precision | None) -> dict[str, Tensor]:
        own = backbone.at(precision)
        return finetune_source(
            own, head_CD, labels_N, lambda view, rows: pixels[rows], lambda epoch: torch.arange(4), recipe
        )

    assert formats_of(lambda: train(None)) == {torch.float32}
    assert formats_of(lambda: train("bfloat16")) == {torch.bfloat16, torch.float32}  # the head is float32
    exact, halved = train(None), train("bfloat16")
    assert all(tensor.dtype == torch.float32 for tensor in halved.values())
    assert any(not torch.equal(halved[name], exact[name]) for name in exact)


@pytest.mark.parametrize("variant", ["maml", "first_order", "reptile"])
def test_a_start_is_meta_learned_in_bfloat16(variant: Variant, backbone: Backbone) -> None:
    pixels = _pixels(backbone)
    head_CD = torch.nn.functional.normalize(torch.randn(2, backbone.embed_dim), dim=-1)
    task = MetaTask("made-up", head_CD, torch.tensor([0, 1, 0, 1]), lambda view, rows: pixels[rows])
    recipe = MetaRecipe(variant, steps=1, tasks_per_step=1, support=2, query=2, outer_rate=0.1)
    found = formats_of(lambda: meta_learn(backbone.at("bfloat16"), [task], recipe, seed=1))
    assert torch.bfloat16 in found
