"""Query, key and value as three linear modules, in the place of the fused projection.

An adapter hung on the fused (3W, W) matrix has one factor A for all three and cannot leave one of them out. Here each
of the three is an ``nn.Linear`` of its own that shares the fused matrix's storage; :func:`merged_weight` is the way
back, with whatever adapters ``peft`` has put on the parts.

Shape legend: B images, T tokens, W width.
"""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn


class SplitProjection(nn.Module):
    """Computes what a fused query-key-value projection does, by the modules ``q``, ``k`` and ``v``.

    They share the fused module's numbers, frozen: do not write to them.
    """

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        self.q, self.k, self.v = (_split_third(fused, part) for part in range(3))

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Queries, keys and values side by side, (B, T, 3W)."""
        return torch.cat([self.q(x_BTW), self.k(x_BTW), self.v(x_BTW)], dim=-1)


def _split_third(fused: nn.Linear, part: int) -> nn.Linear:
    with torch.device("meta"):  # no memory, and no draw from a global random generator
        linear = nn.Linear(fused.in_features, fused.out_features // 3)
    linear.weight = nn.Parameter(fused.weight.detach().chunk(3)[part], requires_grad=False)
    linear.bias = nn.Parameter(fused.bias.detach().chunk(3)[part], requires_grad=False)
    return linear


def merged_weight(module: nn.Module) -> Tensor:
    """The (out, in) weight of a linear module: plain, split, or under an adapter of ``peft`` (which is merged).

    The module stays as it is. A plain module's own weight is returned, in every other case a new tensor.
    """
    from peft.tuners.lora import LoraLayer  # seconds to import

    if isinstance(module, SplitProjection):
        return torch.cat([merged_weight(part) for part in (module.q, module.k, module.v)])
    if isinstance(module, LoraLayer):
        # peft merges in place and undoes it with a rounding error, so a copy is merged; the frozen weight under the
        # adapter is the backbone's own.
        merged: Any = copy.deepcopy(module)
        merged.merge()
        return cast(Tensor, merged.get_base_layer().weight.detach())
    return cast(nn.Linear, module).weight.detach()
