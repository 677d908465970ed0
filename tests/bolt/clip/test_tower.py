"""The tower computes what open_clip computes, under open_clip's names."""

from typing import Any

import pytest
import torch
from torch import nn

from bolt.clip.tensor_names import PROJECTION, TensorMismatch, matrix_names
from bolt.clip.tower import ImageTower, matrix_modules, replace_matrix
from bolt.clip.tower_shape import UnsupportedTower
from tests.helpers.towers import random_clip

B32_IN_TWO_LAYERS = {"width": 768, "heads": 12, "embed": 512, "image_size": 224, "patch_size": 32}


@pytest.fixture
def tower() -> ImageTower:
    return ImageTower.from_open_clip(random_clip().visual)


@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize("changes", [{}, {"layers": 1}, B32_IN_TWO_LAYERS], ids=["tiny", "one layer", "B/32"])
def test_forward_equals_open_clip(quick_gelu: bool, changes: dict[str, Any]) -> None:
    visual = random_clip(quick_gelu=quick_gelu, **changes).visual
    tower = ImageTower.from_open_clip(visual)
    images = torch.randn(3, 3, tower.shape.image_size, tower.shape.image_size)
    with torch.no_grad():
        torch.testing.assert_close(tower(images), visual(images), rtol=1e-5, atol=1e-5)
    assert tower.shape.activation == ("quick_gelu" if quick_gelu else "gelu")


def test_forward_and_gradients_equal_open_clip_in_float64() -> None:
    visual = random_clip(quick_gelu=True).visual.double()
    tower = ImageTower.from_open_clip(visual).copy(visual.state_dict())
    images = torch.randn(3, 3, 32, 32, dtype=torch.float64)
    features, expected = tower(images), visual(images)
    torch.testing.assert_close(features, expected, rtol=1e-12, atol=1e-12)
    for output in (features, expected):
        output.square().sum().backward()
    theirs = dict(visual.named_parameters())
    for name, module in matrix_modules(tower).items():
        own = module.weight.grad
        torch.testing.assert_close(own.T if name == PROJECTION else own, theirs[name].grad)
    torch.testing.assert_close(tower.conv1.weight.grad, theirs["conv1.weight"].grad)
    torch.testing.assert_close(tower.positional_embedding.grad, theirs["positional_embedding"].grad)


def test_a_tower_has_open_clips_names_order_and_values_and_leaves_the_model_alone() -> None:
    visual, before = random_clip().visual, torch.get_rng_state()
    mapped, original = ImageTower.from_open_clip(visual).state_dict_open_clip(), visual.state_dict()
    assert torch.equal(before, torch.get_rng_state()), "the global generator is nobody's"
    assert all(parameter.requires_grad for parameter in visual.parameters())
    assert list(mapped) == list(original)
    assert all(torch.equal(mapped[name], original[name]) for name in original)
    assert not any(tensor.requires_grad for tensor in mapped.values())


def test_load_open_clip_goes_round(tower: ImageTower) -> None:
    target = {name: torch.randn_like(tensor) for name, tensor in tower.state_dict_open_clip().items()}
    own = tower.copy(trainable=target)
    own.load_open_clip(target)
    assert all(torch.equal(tensor, target[name]) for name, tensor in own.state_dict_open_clip().items())


def test_what_does_not_fit_is_listed(tower: ImageTower) -> None:
    tensors = tower.state_dict_open_clip()
    del tensors["class_embedding"], tensors["conv1.weight"]
    tensors |= {"head.weight": torch.zeros(1), "proj": torch.zeros(16, 32)}
    said = r"missing: class_embedding, conv1.weight.*unexpected: head.weight.*proj \(16, 32\) instead of \(32, 16\)"
    with pytest.raises(TensorMismatch, match=said):
        tower.load_open_clip(tensors)
    with pytest.raises(KeyError, match="head"):
        tower.copy(["head"])


@pytest.mark.parametrize(
    ("vision", "complaint"),
    [
        ({"pool_type": "avg"}, "class token"), ({"attentional_pool": True}, "class token"),
        ({"ls_init_value": 1e-5}, "layer scale"), ({"patch_dropout": 0.1}, "patch dropout"),
        ({"no_ln_pre": True}, "layer norm before"), ({"act_kwargs": {"approximate": "tanh"}}, "activation"),
        ({"block_type": "custom"}, "custom"), ({"norm_kwargs": {"bias": False}}, "layer norms without a bias"),
    ],
)  # fmt: skip
def test_other_architectures_are_refused(vision: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UnsupportedTower, match=complaint):
        ImageTower.from_open_clip(random_clip(**vision).visual)


def test_a_copy_owns_what_it_trains_and_shares_the_rest(tower: ImageTower) -> None:
    name = "transformer.resblocks.1.attn.in_proj_weight"
    twin = tower.copy([name])
    mine, theirs = dict(tower.named_parameters()), dict(twin.named_parameters())
    changed = [key for key in mine if mine[key] is not theirs[key]]
    assert changed == ["blocks.1.attn.qkv.weight"]
    assert [key for key, tensor in theirs.items() if tensor.requires_grad] == changed
    assert not any(tensor.requires_grad for tensor in mine.values())
    with torch.no_grad():
        theirs[changed[0]].zero_()
    assert mine[changed[0]].abs().sum() > 0


def test_every_matrix_is_a_linear_module_in_open_clips_orientation(tower: ImageTower) -> None:
    state = tower.state_dict_open_clip()
    modules = matrix_modules(tower)
    assert set(modules) == set(matrix_names(state))
    for name, module in modules.items():
        assert type(module) is nn.Linear
        weight = module.weight.T if name == PROJECTION else module.weight
        assert torch.equal(state[name], weight)


def test_matrices_come_in_network_order(tower: ImageTower) -> None:
    order: list[str] = []
    for name, module in matrix_modules(tower).items():
        module.register_forward_hook(lambda *_, name=name: order.append(name))
    tower(torch.zeros(1, 3, 32, 32))
    assert order == list(matrix_modules(tower))


def test_replacing_a_matrix_reaches_the_forward_pass(tower: ImageTower) -> None:
    images = torch.randn(1, 3, 32, 32)
    for name in matrix_modules(tower):
        changed = tower.copy()
        replace_matrix(changed, name, lambda linear: nn.Sequential(linear, nn.Hardtanh(-1e-3, 1e-3)))
        assert not torch.equal(changed(images), tower(images)), name
