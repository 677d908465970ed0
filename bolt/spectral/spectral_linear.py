"""A linear layer with the weight W0 + U diag(s) V^T, of which only the coefficients s are trained.

A training step costs little more than the forward pass and the input gradient of the frozen network. The forward pass
uses the merged weight. The backward pass computes the input gradient through the merged weight. The gradient of the
coefficients is the sum over tokens of (U^T d) * (V^T x), where x is a token's input and d the gradient of its output.
This takes two thin products. No weight gradient (m, n) is computed.

open_clip stores ``proj`` transposed, so :func:`attach_coefficients` swaps the U and V of this matrix.

Shape legend: ... leading axes, n input and m output width of a linear module, r coefficients.
"""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import ImageTower, replace_matrix
from bolt.spectral.bases import Basis

Sign = Literal["free", "relu"]


class NonFiniteTensor(ValueError):
    """A tensor to be merged or saved has NaN or infinite entries."""


class _SpectralMap(torch.autograd.Function):
    """x (..., n), s (r,) -> x (W + U diag(s) V^T)^T + b (..., m), with gradients for x and s only."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, s: Tensor, weight: Tensor, bias: Tensor | None, u: Tensor, v: Tensor) -> Tensor:
        device = x.device.type
        compute = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):
            merged = torch.addmm(weight, u * s, v.mT).to(compute)
            x = x.to(compute)
            if ctx.needs_input_grad[1]:
                # V^T x is saved instead of x, which is n / r times larger. So x can be freed after the forward pass.
                ctx.save_for_backward(merged, x.reshape(-1, x.shape[-1]) @ v.to(compute), u)
            elif ctx.needs_input_grad[0]:
                ctx.save_for_backward(merged)
            return F.linear(x, merged, None if bias is None else bias.to(compute))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d,) = gradients
        merged, *thin = ctx.saved_tensors
        grad_x = d @ merged if ctx.needs_input_grad[0] else None
        grad_s = None
        if thin:
            x_v, u = thin
            d_u = d.reshape(-1, d.shape[-1]) @ u.to(d.dtype)
            grad_s = torch.linalg.vecdot(d_u.to(u.dtype), x_v.to(u.dtype), dim=0)
        return grad_x, grad_s, None, None, None, None


class SpectralLinear(nn.Module):
    """A frozen linear map plus U diag(s) V^T.

    Attributes:
        weight, bias: the frozen linear module's own tensors.
        coefficients: s (r,), the only trainable tensor.
        sign: ``free`` uses s; ``relu`` uses max(s, 0), as the authors' code does, so entries at or below zero get no
            gradient.

    Raises:
        ValueError: if the shapes of basis, coefficients and weight do not fit.
    """

    u: Tensor
    v: Tensor

    def __init__(self, linear: nn.Linear, basis: Basis, s0: Tensor, sign: Sign = "free") -> None:
        super().__init__()
        if (basis.u.shape[0], basis.v.shape[0]) != tuple(linear.weight.shape) or s0.shape != (basis.rank,):
            raise ValueError(
                f"a basis {tuple(basis.u.shape)}, {tuple(basis.v.shape)} with {tuple(s0.shape)} coefficients does not "
                f"fit a weight {tuple(linear.weight.shape)}"
            )
        self.weight, self.bias, self.sign = linear.weight, linear.bias, sign
        self.register_buffer("u", basis.u.to(linear.weight), persistent=False)
        self.register_buffer("v", basis.v.to(linear.weight), persistent=False)
        self.coefficients = nn.Parameter(s0.detach().to(linear.weight, copy=True))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the frozen weight plus ``U diag(s) V^T`` to inputs (..., n), giving (..., m)."""
        return cast(Tensor, _SpectralMap.apply(x, self._effective(), self.weight, self.bias, self.u, self.v))

    def merged(self) -> nn.Linear:
        """Return a plain frozen linear module with the merged weight. Raises ``NonFiniteTensor``."""
        if not torch.isfinite(self.coefficients).all():
            raise NonFiniteTensor("coefficients are NaN or infinite; they are not merged")
        with torch.no_grad():
            weight = torch.addmm(self.weight, self.u * self._effective(), self.v.mT)
        m, n = weight.shape
        linear = nn.Linear(n, m, bias=False, device="meta")
        linear.weight = nn.Parameter(weight, requires_grad=False)
        linear.bias = self.bias
        return linear

    def _effective(self) -> Tensor:
        return self.coefficients.relu() if self.sign == "relu" else self.coefficients


def attach_coefficients(
    tower: ImageTower, bases: Mapping[str, Basis], s0: Mapping[str, Tensor], sign: Sign = "free"
) -> tuple[ImageTower, dict[str, nn.Parameter]]:
    """Return a copy of a tower with trainable coefficients on some weight matrices, and the coefficients.

    The copy shares every frozen tensor with ``tower``.

    Args:
        bases: basis of each matrix by open_clip's name, in open_clip's orientation. A matrix whose basis has no column
            stays a plain linear module and gets no coefficients.
        s0: initial coefficients (r,) of each matrix.
        sign: see :class:`SpectralLinear`.

    Returns:
        The tower, and its coefficients by open_clip's matrix name.
    """
    adapted = tower.copy()
    coefficients: dict[str, nn.Parameter] = {}
    for name, basis in bases.items():
        if basis.rank == 0:
            continue
        fitting = Basis(basis.v, basis.u) if name == PROJECTION else basis
        module = replace_matrix(adapted, name, partial(SpectralLinear, basis=fitting, s0=s0[name], sign=sign))
        coefficients[name] = cast(SpectralLinear, module).coefficients
    return adapted, coefficients


def merge_coefficients(tower: ImageTower) -> ImageTower:
    """Return a plain frozen tower with all coefficients merged into the weights, sharing all other tensors.

    Raises ``NonFiniteTensor`` if a coefficient is NaN or infinite.
    """
    memo: dict[int, Any] = {id(tensor): tensor for tensor in tower.parameters()}
    for module in tower.modules():
        if isinstance(module, SpectralLinear):
            memo[id(module)] = module.merged()
    return copy.deepcopy(tower, memo).requires_grad_(False)
