"""Linear modules that compute their input again instead of keeping it, and QuickGELU."""

import pytest
import torch
from torch import Tensor, nn

from bolt.clip import recomputation
from bolt.clip.recomputation import QuickGELU, linear_after
from bolt.clip.tower import ImageTower
from tests.helpers.towers import random_clip


def gradients(tower: ImageTower, images: Tensor, precision: str) -> dict[str, Tensor]:
    tower.zero_grad()
    tower.precision = "bfloat16" if precision == "bfloat16" else None
    embeddings = tower(images)
    embeddings.square().sum().backward()
    return {"": embeddings} | {name: each.grad for name, each in tower.named_parameters() if each.grad is not None}


@pytest.mark.parametrize("precision", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("quick_gelu", [False, True])
@pytest.mark.parametrize("trained", ["all", "matrices", "last"])
def test_gradients_keep_every_bit(
    monkeypatch: pytest.MonkeyPatch, quick_gelu: bool, precision: str, trained: str
) -> None:
    tower = ImageTower.from_open_clip(random_clip(quick_gelu=quick_gelu).visual)
    names = list(tower.state_dict_open_clip())
    if trained != "all":
        names = [name for name in names if "c_proj.weight" in name or ("in_proj" in name and trained == "matrices")]
        names = names[-1:] if trained == "last" else names
    tower, images = tower.copy(names), torch.randn(3, 3, 32, 32)
    if precision == "float64":
        tower, images = tower.double(), images.double()
    kept = gradients(tower, images, precision)
    monkeypatch.setattr(recomputation, "RECOMPUTED_FROM", 0)
    computed_again = gradients(tower, images, precision)
    assert kept.keys() == computed_again.keys()
    assert len(kept) == 1 + len(names)
    assert [name for name in kept if not torch.equal(kept[name], computed_again[name])] == []


def test_an_input_is_kept_where_computing_it_twice_is_not_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 5, 24, requires_grad=True)

    def kept(linear: nn.Module) -> int:
        """Return how many numbers are kept for the backward pass, without the parameters."""
        own, sizes = {tensor.data_ptr() for tensor in linear.parameters()}, list[int]()

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(0 if tensor.data_ptr() in own else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            linear_after(nn.GELU(), x, linear)
        return sum(sizes)

    trained, frozen = nn.Linear(24, 6), nn.Linear(24, 6).requires_grad_(False)
    assert kept(trained) == 2 * x.numel()  # x is small
    monkeypatch.setattr(recomputation, "RECOMPUTED_FROM", x.numel())
    assert kept(trained) == x.numel()
    assert kept(frozen) == x.numel()  # the gradient of x needs the weight only


@pytest.mark.parametrize("module", [nn.GELU(), nn.LayerNorm(24)], ids=["gelu", "layer_norm"])
def test_there_is_a_second_derivative_for_meta_learning(monkeypatch: pytest.MonkeyPatch, module: nn.Module) -> None:
    monkeypatch.setattr(recomputation, "RECOMPUTED_FROM", 0)
    linear = nn.Linear(24, 2, bias=False).double()
    x = torch.randn(1, 24, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, weight: Tensor) -> Tensor:
        return linear_after(module.double(), x, linear)  # gradcheck changes the module's weight in place

    assert torch.autograd.gradcheck(function, (x, linear.weight))
    assert torch.autograd.gradgradcheck(function, (x, linear.weight))


def test_quick_gelu_and_its_gradient() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(QuickGELU()(x), x * torch.sigmoid(1.702 * x))
    assert torch.autograd.gradcheck(QuickGELU(), x)
