"""LoRA and DoRA on one linear module.

``peft`` has these layers too, and tests check that both give the same bits. ``peft`` itself is not used here, because
importing it takes a worker 2.4 seconds and 240 MiB: it imports transformers, torchvision and SciPy.

Shape legend: r rank, (m, n) the weight matrix (out, in).
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class LowRankLinear(nn.Module):
    """A frozen linear module with weight W, and a trained update of rank r (LoRA, arXiv:2106.09685).

    The weight becomes ``W + scaling * B A``. With a magnitude (DoRA, arXiv:2402.09353) every row of that sum is scaled
    to a trained length. B starts at zero and the magnitude at the lengths of W's rows, so the untrained module computes
    the same as the frozen one.

    Attributes:
        lora_A, lora_B: A (r, n) and B (m, r).
        magnitude: the lengths of the rows (m), or ``None``.
    """

    def __init__(self, frozen: nn.Linear, rank: int, scaling: float, *, dropout: float, dora: bool) -> None:
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        self.scaling = scaling
        self.dropout = dropout
        a, b = torch.empty(rank, frozen.in_features), torch.empty(frozen.out_features, rank)
        # peft draws A, then B, then A again. The same order here gives the same A as in peft for a seed.
        for factor in (a, b, a):
            nn.init.kaiming_uniform_(factor, a=math.sqrt(5))
        self.lora_A = nn.Parameter(a.to(frozen.weight))
        self.lora_B = nn.Parameter(torch.zeros_like(b).to(frozen.weight))
        self.magnitude = nn.Parameter(torch.linalg.norm(frozen.weight, dim=1)) if dora else None

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., n) to outputs (..., m), which have the number format of the frozen module's outputs."""
        plain: Tensor = self.frozen(x)
        x = x.to(self.frozen.weight.dtype)
        drops = self.dropout > 0 and self.training
        if drops:
            x = F.dropout(x, self.dropout)
        update = F.linear(F.linear(x, self.lora_A), self.lora_B)
        if self.magnitude is None:
            return plain + update * self.scaling
        if drops:
            without_bias = F.linear(x, self.frozen.weight)
        else:
            without_bias = plain if self.frozen.bias is None else plain - self.frozen.bias
        growth_m = self.magnitude / self._row_lengths()
        change = (growth_m - 1) * without_bias + growth_m * update * self.scaling
        return (plain + change).to(plain.dtype)

    @torch.no_grad()
    def _row_lengths(self) -> Tensor:
        """Return the lengths (m) of the rows of ``W + scaling * B A``, without a gradient (DoRA, section 4.3)."""
        weight: Tensor = self.frozen.weight
        product = F.linear(self.lora_A.T.contiguous(), self.lora_B).T
        lengths: Tensor = torch.linalg.norm(weight + self.scaling * product.to(weight.dtype), dim=1)
        return lengths

    @torch.no_grad()
    def merged_weight(self) -> Tensor:
        """Return a new weight (m, n). A plain linear module with it has this module's outputs in evaluation mode."""
        merged: Tensor = self.frozen.weight + (self.lora_B @ self.lora_A) * self.scaling
        if self.magnitude is None:
            return merged
        growth_m: Tensor = self.magnitude / torch.linalg.norm(merged, dim=1)
        return growth_m[:, None] * merged
