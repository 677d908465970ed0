"""LoRA and DoRA: split attention, adapters, merging, counts, and the tensors that the authors' code trains."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bolt.clip.backbone import Backbone
from bolt.clip.text_tower import TextTower
from bolt.clip.tower import ImageTower, SelfAttention
from bolt.clip.tower_shape import TextShape, TowerShape
from bolt.methods import METHODS
from bolt.methods.base import Method
from bolt.methods.common.adapters import (
    SplitProjection,
    adapted_blocks,
    attach_adapters,
    attach_to_tower,
    bolt_coefficient_count,
    merged_weight,
    parameters_per_block,
)
from bolt.methods.lora import AdaptedText, LoraSettings, published_settings, trainable_adapters
from bolt.protocol import PUBLISHED, STRICT
from bolt.task.classifiers import CosineClassifier
from bolt.training.adaptation import Trainable
from bolt.training.loop import Diverged
from tests.helpers.adapting import adapt, classifier, with_curve
from tests.helpers.quick_settings import quick_settings
from tests.helpers.towers import VIT_B32, VIT_L14, make_task, moved_tensors, random_backbone, weights_of
from tests.helpers.waves import plane_wave

VIT_B16 = TowerShape(224, 16, 768, 12, 12, 3072, 512, "quick_gelu")
LORA, DORA = METHODS["lora"], METHODS["dora"]
EITHER = pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
PRESETS = pytest.mark.parametrize("changes", [{}, {"preset": "clip_lora"}, {"preset": "matched"}], ids=str)


@pytest.fixture(scope="module")
def deep() -> Backbone:
    """The tower has five blocks, enough for peft to shorten its list of targets."""
    return random_backbone(layers=5)


def images(backbone: Backbone) -> Tensor:
    return backbone.normalise(make_task(backbone).support.pixels(0, torch.arange(4)))


def moved(model: Trainable, scale: float = 0.1) -> Trainable:
    """Shift every trainable parameter of the model at random."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in model.parameters:
            tensor.add_(scale * torch.randn(tensor.shape, generator=generator))
    return model


def wave(rows: int, columns: int, a: float, b: float, c: float) -> Tensor:
    return plane_wave(rows, columns, a, b, c).float()


@torch.no_grad()
def wave_attention() -> SelfAttention:
    attention = SelfAttention(8, 2)
    attention.qkv.weight.copy_(0.3 * wave(24, 8, 0.7, 1.1, 0.2))
    attention.qkv.bias.copy_(0.1 * wave(1, 24, 1, 0.9, 0.1)[0])
    attention.out.weight.copy_(0.3 * wave(8, 8, 1.3, 0.6, 0.4))
    attention.out.bias.copy_(0.1 * wave(1, 8, 1, 0.7, 0.3)[0])
    return attention.requires_grad_(False)


@pytest.mark.parametrize("outputs", [1, 3])
def test_attention_with_split_projections_is_unchanged_on_the_same_memory(outputs: int) -> None:
    attention = wave_attention()
    x_BTW = wave(6, 8, 0.9, 0.35, 0.25).view(2, 3, 8)
    expected, fused = attention(x_BTW, nn.Identity(), outputs), attention.qkv
    split = SplitProjection(fused)
    attention.qkv = split  # type: ignore[assignment]
    torch.testing.assert_close(attention(x_BTW, nn.Identity(), outputs), expected, rtol=1e-6, atol=1e-7)
    assert split.q.weight.data_ptr() == fused.weight.data_ptr()
    assert torch.equal(merged_weight(split), fused.weight)


@torch.no_grad()
def test_adapters_on_query_key_and_value_give_clip_loras_numbers() -> None:
    """Numbers of the official CLIP-LoRA attention: r = 2, alpha = 1, factor 1 / sqrt(2), without dropout."""
    expected = [0.171419, 0.122747, -0.022050, -0.035904, 0.070028, 0.077505, -0.089424, -0.222580]
    x_LBW = wave(6, 8, 0.9, 0.35, 0.25).view(3, 2, 8)
    attention = wave_attention()
    attention.qkv = SplitProjection(attention.qkv)  # type: ignore[assignment]
    settings = LORA.configure({"preset": "clip_lora"})
    attach_adapters(attention, ["qkv.q", "qkv.k", "qkv.v"], settings, False, "test")
    attention.eval()
    for part, a, b in (("q", 0.2, 0.5), ("k", 0.4, 0.3), ("v", 0.6, 0.1)):
        layer: Any = attention.get_submodule(f"qkv.{part}")
        layer.lora_A.copy_(0.5 * wave(2, 8, 1.7, a, 0.1))
        layer.lora_B.copy_(0.5 * wave(8, 2, b, 1.2, 0.3))
    unmerged = attention(x_LBW.transpose(0, 1), nn.Identity(), 3)
    torch.testing.assert_close(unmerged[0, 0], torch.tensor(expected), rtol=0, atol=2e-6)
    plain = wave_attention()
    plain.qkv.weight.copy_(merged_weight(attention.qkv))
    torch.testing.assert_close(plain(x_LBW.transpose(0, 1), nn.Identity(), 3), unmerged, rtol=1e-5, atol=1e-7)


@EITHER
@PRESETS
def test_training_starts_at_the_frozen_tower(dora: bool, changes: dict[str, Any], backbone: Backbone) -> None:
    model = trainable_adapters(make_task(backbone), LORA.configure(changes), dora)
    x = images(backbone)
    torch.testing.assert_close(model.encode(x), backbone.tower(x), rtol=1e-6, atol=1e-6)
    frozen, start = backbone.tower.state_dict_open_clip(), model.current().state_dict_open_clip()
    assert all(torch.equal(start[name], frozen[name]) for name in frozen)


@EITHER
def test_merged_equals_unmerged(dora: bool, deep: Backbone) -> None:
    model = moved(trainable_adapters(make_task(deep), LoraSettings(rank=3, last_blocks=4), dora))
    x = images(deep)
    with torch.no_grad():
        unmerged, merged = model.encode(x), model.current()(x)
        assert (merged - deep.tower(x)).abs().max() > 0.1
        torch.testing.assert_close(unmerged, merged, rtol=1e-4, atol=1e-5)
        assert torch.equal(model.encode(x), unmerged), "merging must not move what is trained"


@EITHER
@pytest.mark.parametrize(
    ("targets", "matrices"),
    [
        (("v",), {"attn.in_proj_weight"}),
        (("k", "out"), {"attn.in_proj_weight", "attn.out_proj.weight"}),
        (("c_fc",), {"mlp.c_fc.weight"}),
        (
            LoraSettings().targets,
            {"attn.in_proj_weight", "attn.out_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"},
        ),
    ],
    ids=["v", "k and out", "c_fc", "all"],
)
def test_the_chosen_matrices_change(dora: bool, targets: tuple[str, ...], matrices: set[str], deep: Backbone) -> None:
    model = moved(trainable_adapters(make_task(deep), LoraSettings(rank=2, last_blocks=4, targets=targets), dora))
    before, after = deep.tower.state_dict_open_clip(), model.current().state_dict_open_clip()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"transformer.resblocks.{index}.{name}" for index in range(1, 5) for name in matrices}
    thirds = dict(zip("qkv", (after[_QKV] - before[_QKV]).chunk(3), strict=True))
    assert {part for part, change in thirds.items() if change.abs().max() > 0} == set(targets) & set("qkv")


_QKV = "transformer.resblocks.4.attn.in_proj_weight"


@EITHER
def test_no_adapter_is_dead(dora: bool, deep: Backbone) -> None:
    model = moved(trainable_adapters(make_task(deep), LoraSettings(rank=2), dora))
    assert len(model.parameters) == 5 * 6 * (3 if dora else 2)
    model.encode(images(deep)).square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.abs().max() > 0 for tensor in model.parameters)


@EITHER
def test_dropout_is_keyed_by_the_step(dora: bool, backbone: Backbone) -> None:
    x, settings = images(backbone), LoraSettings(rank=2, dropout=0.5)
    before = torch.get_rng_state()
    one, other = (moved(trainable_adapters(make_task(backbone), settings, dora)) for _ in range(2))
    first, second = one.encode(x), one.encode(x)
    assert not torch.equal(first, second)
    assert torch.equal(other.encode(x), first)
    assert torch.equal(other.encode(x), second)
    elsewhere = moved(trainable_adapters(make_task(backbone, seed=2), settings, dora))
    assert not torch.equal(elsewhere.encode(x), first)
    assert torch.equal(before, torch.get_rng_state())
    assert type(one.current().get_submodule("blocks.0.attn.qkv")) is nn.Linear


@EITHER
def test_half_precision_trains_the_same_numbers_in_full_precision(dora: bool, backbone: Backbone) -> None:
    model, x = moved(trainable_adapters(make_task(backbone), LoraSettings(rank=2), dora)), images(backbone)
    with torch.autocast("cpu", torch.bfloat16):
        features = model.encode(x)
    assert features.dtype == torch.bfloat16
    torch.testing.assert_close(features.float(), model.encode(x), rtol=0.05, atol=0.05)
    features.float().square().sum().backward()
    assert all(tensor.grad is not None and tensor.grad.dtype == torch.float32 for tensor in model.parameters)
    assert all(bool(torch.isfinite(tensor.grad).all()) for tensor in model.parameters if tensor.grad is not None)


def test_a_rate_far_too_high_is_reported_as_divergence(backbone: Backbone) -> None:
    with pytest.raises(Diverged, match="epoch 0"):
        LORA.adapt(make_task(backbone), LoraSettings(rank=2, learning_rate=1e38, warmup_fraction=0.0))


@pytest.mark.parametrize(
    ("shape", "clip_lora", "bolt", "matched"),
    [(VIT_B16, 110_592, 9_408, 9_216), (VIT_L14, 294_912, 18_624, 18_432)],
    ids=["vit_b", "vit_l"],
)
def test_presets_train_what_they_say(shape: TowerShape, clip_lora: int, bolt: int, matched: int) -> None:
    with torch.device("meta"):
        assert bolt_coefficient_count(ImageTower(shape), 16) == bolt
    presets = ((clip_lora, "clip_lora", False), (matched, "matched", False), (matched, "matched", True))
    for expected, preset, dora in presets:
        settings = LORA.configure({"preset": preset})
        with torch.device("meta"):
            tower, plain = (ImageTower(shape).requires_grad_(False) for _ in range(2))
            attach_to_tower(tower, settings, dora, "test")
        assert sum(tensor.numel() for tensor in tower.parameters() if tensor.requires_grad) == expected
        assert adapted_blocks(plain, settings, dora) * parameters_per_block(plain, settings, dora) == expected


@pytest.mark.parametrize(
    "changes", [{"rank": 3}, {"targets": ["q", "c_proj"], "last_blocks": 1}, {"preset": "matched"}], ids=str
)
@EITHER
def test_the_count_is_what_was_trained(dora: bool, changes: dict[str, Any], backbone: Backbone) -> None:
    method, tower = METHODS["dora" if dora else "lora"], backbone.tower
    settings = method.configure({**changes, "epochs": 1})
    numbers = adapted_blocks(tower, settings, dora) * parameters_per_block(tower, settings, dora)
    assert method.adapt(make_task(backbone), settings).trainable_parameters == numbers


def test_what_the_tower_is_too_small_for_is_refused(backbone: Backbone) -> None:
    with pytest.raises(ValueError, match="tower has 2 blocks"):
        trainable_adapters(make_task(backbone), LoraSettings(last_blocks=3))
    with pytest.raises(ValueError, match="lower rank"):
        trainable_adapters(make_task(backbone), LoraSettings(match_sources=1, rank=100))


def test_the_candidates_are_the_authors_rates() -> None:
    assert [settings.learning_rate for settings in LORA.candidates(LoraSettings())] == [3e-5, 1e-4]


FROZEN = (".out_proj.weight", ".out_proj.bias", ".c_fc.bias", ".c_proj.bias")
"""The tensors, by open_clip's names, that the authors' code does not train."""


def test_as_published_trains_what_it_says(backbone: Backbone) -> None:
    task = make_task(backbone, protocol=STRICT.with_switches(lora="as_published"))
    adapted = LORA.adapt(task, LoraSettings(epochs=2))
    before = backbone.tower.state_dict_open_clip()
    assert moved_tensors(backbone, adapted) == {name for name in before if not name.endswith(FROZEN)}
    whole = sum(
        tensor.numel()
        for name, tensor in before.items()
        if not name.endswith((*FROZEN, "c_fc.weight", "c_proj.weight"))
    )
    assert adapted.trainable_parameters == whole + 2 * 2 * 8 * (32 + 128) + 3 * (16 + 1)
    features = wave(4, 16, 0.7, 1.3, 0.2)
    by_text_head = task.backbone.logit_scale * nn.functional.normalize(features, dim=-1) @ task.head_CD.T
    moved_by = (adapted.classify(features) - by_text_head).abs().max()
    assert 0 < moved_by < 1


@pytest.mark.parametrize(
    ("shape", "millions"), [(VIT_B32, 24.1), (VIT_B16, 22.4), (VIT_L14, 77.3)], ids=["b32", "b16", "l14"]
)
def test_as_published_unfreezes_as_much_as_the_authors_do(shape: TowerShape, millions: float) -> None:
    with torch.device("meta"):
        state = ImageTower(shape).state_dict_open_clip()
    linear = (*FROZEN, "c_fc.weight", "c_proj.weight")
    whole = sum(tensor.numel() for name, tensor in state.items() if not name.endswith(linear))
    assert round(whole / 1e6, 1) == millions


def test_as_published_starts_too_far_and_halves_its_rate(backbone: Backbone) -> None:
    task, rates = with_curve(make_task(backbone, protocol=PUBLISHED), "learning_rate")
    LORA.adapt(task, LoraSettings(epochs=3, learning_rate=1e-4))
    assert rates == [1e-4, 5e-5, 2.5e-5]
    model = trainable_adapters(task, published_settings(LoraSettings()), published=True)
    sound = trainable_adapters(task, published_settings(LoraSettings()))
    for parameters, bound in ((model.parameters, lambda n: 1 / math.sqrt(8)), (sound.parameters, lambda n: n**-0.5)):
        factors = [tensor for tensor in parameters if tensor.ndim == 2 and len(tensor) == 8]
        assert len(factors) == 4
        for factor in factors:
            limit = bound(factor.shape[1])
            assert 0.9 * limit < factor.abs().max() <= limit * (1 + 1e-6)


def test_the_switch_is_loras_alone(backbone: Backbone) -> None:
    """The authors have no DoRA, so the switch does not change it."""
    left, right = (
        weights_of(DORA.adapt(make_task(backbone, protocol=STRICT.with_switches(lora=value)), LoraSettings(epochs=1)))
        for value in ("sound", "as_published")
    )
    assert all(torch.equal(left[name], right[name]) for name in left)


BOTH: dict[str, Any] = {"preset": "clip_lora_both", "epochs": 3, "batch_size": 8}
"""CLIP-LoRA as published, on both towers. LoRA on the image tower alone is unchanged."""


@pytest.mark.parametrize(
    ("width", "heads", "embed_dim", "count"), [(512, 8, 512, 73_728), (768, 12, 768, 110_592)], ids=["vit_b", "vit_l"]
)
def test_clip_lora_trains_as_many_text_numbers_as_published(width: int, heads: int, embed_dim: int, count: int) -> None:
    shape = TextShape(77, 49408, width, 12, heads, 4 * width, embed_dim, "quick_gelu")
    with torch.device("meta"):
        tower = TextTower(shape).requires_grad_(False)
        attach_to_tower(tower, LORA.configure(BOTH), False, "test")
    assert sum(tensor.numel() for tensor in tower.parameters() if tensor.requires_grad) == count


def test_the_untrained_head_is_the_first_prompt_of_the_frozen_tower(backbone: Backbone) -> None:
    task = make_task(backbone)
    head_CD = AdaptedText(task, LORA.configure(BOTH)).classifier().head_CD
    first = backbone.zero_shot_head(task.class_text.class_names, task.class_text.templates[:1])
    torch.testing.assert_close(head_CD, first)


@pytest.mark.parametrize("method", [LORA, DORA], ids=lambda method: method.name)
def test_both_towers_are_trained(method: Method, backbone: Backbone) -> None:
    task, losses = with_curve(make_task(backbone))
    settings = method.configure({**BOTH, "epochs": 12, "learning_rate": 1e-2})
    adapted = method.adapt(task, settings)
    assert losses[-1] < 0.8 * losses[0]
    image_only = method.adapt(task, replace(settings, towers="image", epochs=1))
    shape, names = backbone.text_tower.shape, task.class_text.class_names
    per_matrix = 2 * 2 * shape.width + (shape.width if method.name == "dora" else 0)
    assert adapted.trainable_parameters - image_only.trainable_parameters == 3 * shape.layers * per_matrix
    head_CD = classifier(adapted, CosineClassifier).head_CD
    assert (head_CD - backbone.zero_shot_head(names, task.class_text.templates[:1])).abs().max() > 0.01
    assert adapted.embed_classes is not None
    torch.testing.assert_close(adapted.embed_classes(names), head_CD)


def test_text_dropout_is_keyed_and_absent_in_the_result(backbone: Backbone) -> None:
    one, other = (
        classifier(adapt("lora", make_task(backbone), **BOTH, learning_rate=1e-2), CosineClassifier).head_CD
        for _ in range(2)
    )
    assert torch.equal(one, other)
    text = AdaptedText(make_task(backbone), LORA.configure({**BOTH, "dropout": 0.5}))
    for tensor in text.parameters:
        torch.nn.init.normal_(tensor, std=0.3, generator=torch.Generator().manual_seed(1))
    features = torch.ones(1, backbone.embed_dim)
    assert not torch.equal(text.classify(features), text.classify(features))
    assert torch.equal(text.classifier()(features), text.classifier()(features))


def test_the_image_tower_alone_keeps_its_identity_and_reads_no_class_names(backbone: Backbone) -> None:
    assert "towers" not in dict(LORA.identity_of(LORA.configure({"preset": "clip_lora"})))
    assert dict(LORA.identity_of(LORA.configure(BOTH)))["towers"] == "both"
    assert LORA.trains_text(LORA.configure(BOTH))
    assert not LORA.trains_text(LORA.configure({"preset": "clip_lora"}))
    task = replace(make_task(backbone), text=None)
    LORA.adapt(task, LORA.configure(quick_settings("lora")))
    with pytest.raises(ValueError, match="class names"):
        LORA.adapt(task, LORA.configure(BOTH))


def test_the_published_protocol_adapts_the_image_tower_alone(backbone: Backbone) -> None:
    adapted = LORA.adapt(make_task(backbone, protocol=PUBLISHED), LORA.configure(BOTH))
    assert adapted.embed_classes is None
