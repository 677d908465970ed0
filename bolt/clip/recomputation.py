"""Operations that keep less memory for the backward pass: QuickGELU, and activation checkpointing of single operations.

In training, a linear module keeps its input for the gradient of its weight. In a transformer block, this input is the
output of a layer norm or of the activation, and autograd keeps the input of that operation as well.
:func:`linear_after` keeps only the input of the operation, and computes the output again in the backward pass.

Shape legend: ... leading axes, k input width, n input and m output width of a linear module.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

RECOMPUTED_FROM = 2**20
"""If ``x`` has at least this many numbers, :func:`linear_after` computes ``module(x)`` again in the backward pass. At
ViT-B/32 this takes 2 % of a training step, and saves two fifths of the memory of the step's activations. In the demo's
small tower it would take 10 % of a step."""


class QuickGELU(nn.Module):
    """The activation of the original CLIP weights, ``x * sigmoid(1.702 x)``."""

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _QuickGELU.apply(x))


class _QuickGELU(torch.autograd.Function):
    """``x * sigmoid(1.702 x)``, computed as ``silu(1.702 x) / 1.702``, which needs half as many passes over the memory.

    In the backward pass, the factors 1.702 and 1 / 1.702 cancel. Only first derivatives are supported.
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


def linear_after(module: nn.Module, x: Tensor, linear: nn.Module) -> Tensor:
    """Return ``linear(module(x))``, (..., m), for x (..., k), with the same bits and gradients as the plain call.

    The intermediate result ``module(x)`` is not kept for the backward pass if ``x`` is large and ``linear`` is a plain
    linear module with a trained weight.

    Args:
        module: a layer norm with weight and bias, or a module without parameters.
    """
    if type(linear) is not nn.Linear or not linear.weight.requires_grad or x.numel() < RECOMPUTED_FROM:
        return cast(Tensor, linear(module(x)))
    if isinstance(module, nn.LayerNorm):
        epsilon = module.eps

        def normalise(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return F.layer_norm(x, weight.shape, weight, bias, epsilon)

        own = module.weight, module.bias
        return cast(Tensor, _LinearAfter.apply(normalise, linear.weight, linear.bias, x, *own))
    return cast(Tensor, _LinearAfter.apply(module, linear.weight, linear.bias, x))


class _LinearAfter(torch.autograd.Function):
    """``function(x, *own) W^T + b``, (..., m), with gradients for W, b, x (..., k) and ``own``.

    ``own``: the parameters of ``function``.
    """

    @staticmethod
    def forward(
        ctx: Any, function: Callable[..., Tensor], weight: Tensor, bias: Tensor | None, x: Tensor, *own: Tensor
    ) -> Tensor:
        ctx.function = function
        ctx.save_for_backward(weight, x, *own)
        return F.linear(function(x, *own), weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        d, (weight, *inputs) = gradients[0], ctx.saved_tensors
        with torch.enable_grad():
            y = ctx.function(*inputs)  # (..., n)
        rows = d.flatten(0, -2)
        grad_weight = (rows.mT @ y.to(d.dtype).flatten(0, -2)).to(weight.dtype)
        grad_bias = rows.sum(dim=0).to(weight.dtype) if ctx.needs_input_grad[2] else None
        of_inputs: list[Tensor | None] = [None] * len(inputs)
        if wanted := [number for number in range(len(inputs)) if ctx.needs_input_grad[3 + number]]:
            grad_y = (d @ weight.to(d.dtype)).to(y.dtype)
            found = torch.autograd.grad(
                y, [inputs[number] for number in wanted], grad_y, create_graph=torch.is_grad_enabled()
            )
            for number, gradient in zip(wanted, found, strict=True):
                of_inputs[number] = gradient
        return None, grad_weight, grad_bias, *of_inputs
