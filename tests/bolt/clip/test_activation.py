"""The activation of a block: QuickGELU, and an activation that is computed twice instead of kept."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from bolt.clip import activation
from bolt.clip.activation import QuickGELU, activated_linear


def gradients(function: nn.Module, linear: nn.Linear, x: Tensor, precision: torch.dtype) -> list[Tensor]:
    """The output, and the gradients of the input, the weight and the bias."""
    x = x.detach().clone().requires_grad_()
    linear.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        y = activated_linear(x.to(precision), function, linear)
    y.float().square().sum().backward()
    found = [y, x.grad, linear.weight.grad, None if linear.bias is None else linear.bias.grad]
    return [tensor.detach().clone() for tensor in found if tensor is not None]


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("function", [nn.GELU(), QuickGELU()], ids=["gelu", "quick_gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_an_activation_that_is_not_kept_changes_no_bit(
    monkeypatch: pytest.MonkeyPatch, function: nn.Module, bias: bool, precision: torch.dtype
) -> None:
    torch.manual_seed(0)
    linear, x = nn.Linear(24, 6, bias=bias), torch.randn(4, 5, 24)
    kept = gradients(function, linear, x, precision)
    monkeypatch.setattr(activation, "RECOMPUTED_FROM", 0)
    computed_again = gradients(function, linear, x, precision)
    assert len(kept) == len(computed_again) == 3 + bias
    assert all(map(torch.equal, kept, computed_again))


def test_it_is_kept_only_where_that_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(4, 5, 24, requires_grad=True)

    def kept(linear: nn.Module) -> int:
        """Numbers that the backward pass keeps beside the parameters."""
        own, sizes = {tensor.data_ptr() for tensor in linear.parameters()}, list[int]()

        def pack(tensor: Tensor) -> Tensor:
            sizes.append(0 if tensor.data_ptr() in own else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            activated_linear(x, nn.GELU(), linear)
        return sum(sizes)

    trained, frozen = nn.Linear(24, 6), nn.Linear(24, 6).requires_grad_(False)
    assert kept(trained) == 2 * x.numel()  # a small one
    monkeypatch.setattr(activation, "RECOMPUTED_FROM", x.numel())
    assert kept(trained) == x.numel()
    assert kept(frozen) == x.numel()  # its gradient needs the weight alone


def test_it_has_a_second_derivative_as_meta_learning_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activation, "RECOMPUTED_FROM", 0)
    linear, x = nn.Linear(4, 3).double(), torch.randn(2, 4, dtype=torch.float64, requires_grad=True)

    def of(x: Tensor, weight: Tensor) -> Tensor:
        return torch.func.functional_call(_Activated(linear), {"linear.weight": weight}, (x,))

    weight = linear.weight.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(of, (x, weight))
    assert torch.autograd.gradgradcheck(of, (x, weight))


def test_quick_gelu_and_its_gradient() -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(QuickGELU()(x), x * torch.sigmoid(1.702 * x))
    assert torch.autograd.gradcheck(QuickGELU(), x)


class _Activated(nn.Module):
    """GELU and a linear module, as one module whose weight can be replaced."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.call = partial(activated_linear, activation=nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x, linear=self.linear)
