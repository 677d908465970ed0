"""Losses.

Shape legend: B images, C classes.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Mean cross-entropy in float32, whatever precision the logits come in."""
    return F.cross_entropy(logits_BC.float(), labels_B)
