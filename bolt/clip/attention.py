"""Splits the fused query-key-value projection into three linear modules, so that each can get its own adapter.

A LoRA adapter on the fused (3W, W) matrix has one factor A for query, key and value, and cannot leave one of them out.
The three modules share the storage of the fused matrix.

Shape legend: B images, T tokens, W width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class SplitProjection(nn.Module):
    """The fused query-key-value projection as three linear modules ``q``, ``k`` and ``v``.

    They are frozen and share the memory of the fused module, so their weights must not be written to.
    """

    def __init__(self, fused: nn.Linear) -> None:
        super().__init__()
        self.q, self.k, self.v = (_split_third(fused, part) for part in range(3))

    def forward(self, x_BTW: Tensor) -> Tensor:
        """Return queries, keys and values, concatenated: (B, T, W) -> (B, T, 3W)."""
        return torch.cat([self.q(x_BTW), self.k(x_BTW), self.v(x_BTW)], dim=-1)


def _split_third(fused: nn.Linear, part: int) -> nn.Linear:
    with torch.device("meta"):  # allocates no memory and draws no random numbers
        linear = nn.Linear(fused.in_features, fused.out_features // 3)
    linear.weight = nn.Parameter(fused.weight.detach().chunk(3)[part], requires_grad=False)
    linear.bias = nn.Parameter(fused.bias.detach().chunk(3)[part], requires_grad=False)
    return linear
