"""Deterministic tensors on which the official code of several methods was run, for reference numbers in tests."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def wave(n: int, m: int, a: float, b: float, c: float) -> Tensor:
    """``sin(a i + b j + c)`` for i < n and j < m, in float64."""
    i, j = torch.arange(n, dtype=torch.float64)[:, None], torch.arange(m, dtype=torch.float64)
    return torch.sin(a * i + b * j + c)


def unit(values: Tensor) -> Tensor:
    """The rows normalised, in float32."""
    return F.normalize(values, dim=-1).float()
