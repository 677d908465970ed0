"""The activation of a transformer block: GELU, or the QuickGELU of the original CLIP weights.

A block's activation is four times as wide as its tokens. In a training, the linear module that reads it would keep it
for the backward pass, beside the activation's own input. :func:`activated_linear` keeps the input alone.

Shape legend: ... leading axes, n input and m output width of a linear module.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

RECOMPUTED_FROM = 2**20
"""Numbers of an activation from which on it is computed twice instead of kept. That takes 2 % of a training step at
ViT-B/32, and saves a quarter of its activations. In the demo's small tower it would take 10 % of a step."""


class QuickGELU(nn.Module):
    """The activation of the original CLIP weights, ``x * sigmoid(1.702 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _QuickGELU.apply(x))


class _QuickGELU(torch.autograd.Function):
    """x * sigmoid(1.702 x), computed as silu(1.702 x) / 1.702 to halve the passes over memory; first derivative only.

    The constants cancel in the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        scaled = 1.702 * x
        ctx.save_for_backward(scaled)
        return F.silu(scaled).mul_(1 / 1.702)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (scaled,) = ctx.saved_tensors
        return cast(Tensor, torch.ops.aten.silu_backward(gradients[0], scaled))


def activated_linear(x: Tensor, activation: nn.Module, linear: nn.Module) -> Tensor:
    """``linear(activation(x))`` for x (..., n), giving (..., m).

    If a plain linear module's weight is trained, a large activation is not kept for the backward pass. The gradients
    have the same bits.
    """
    plain = type(linear) is nn.Linear and linear.weight.requires_grad and type(activation) in (nn.GELU, QuickGELU)
    if plain and x.numel() >= RECOMPUTED_FROM:
        return cast(Tensor, _ActivatedLinear.apply(x, activation, linear.weight, linear.bias))
    return cast(Tensor, linear(activation(x)))


class _ActivatedLinear(torch.autograd.Function):
    """x (..., n) -> activation(x) W^T + b (..., m), with gradients for x, W and b."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: nn.Module, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.activation = activation
        ctx.save_for_backward(x, weight)
        return F.linear(activation(x), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (d,) = gradients
        x, weight = ctx.saved_tensors
        rows = d.flatten(0, -2)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = _activation_backward(ctx.activation, d @ weight.to(d.dtype), x)
        if ctx.needs_input_grad[2]:
            grad_weight = (rows.mT @ ctx.activation(x).flatten(0, -2)).to(weight.dtype)
        if ctx.needs_input_grad[3]:
            grad_bias = rows.sum(dim=0).to(weight.dtype)
        return grad_x, None, grad_weight, grad_bias


def _activation_backward(activation: nn.Module, gradient: Tensor, x: Tensor) -> Tensor:
    if isinstance(activation, QuickGELU):
        return cast(Tensor, torch.ops.aten.silu_backward(gradient, 1.702 * x))
    return cast(Tensor, torch.ops.aten.gelu_backward(gradient, x))
