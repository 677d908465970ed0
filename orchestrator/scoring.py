"""Scoring a classifier on a decoded test split.

Shape legend: N test images, B batch, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SCORING_BATCH = 256
"""Images are scored in batches of this size, cut from the start, so that equal towers give equal bits."""


class NotFinite(ArithmeticError):
    """A classifier gave NaN or infinite logits: the run diverged, and its accuracy would mean nothing."""


def predictions(total: int, features_of: Callable[[int, int], Tensor], classify: Callable[[Tensor], Tensor]) -> Tensor:
    """The predicted class of each of ``total`` images, (N,), on the CPU.

    Args:
        features_of: ``features_of(start, stop)`` -> raw features (B, D) of those images.
        classify: features (B, D) -> logits (B, C).

    Raises:
        NotFinite: a logit is NaN or infinite.
    """
    found = []
    with torch.inference_mode():
        for start in range(0, total, SCORING_BATCH):
            logits_BC = classify(features_of(start, min(start + SCORING_BATCH, total)))
            if not torch.isfinite(logits_BC).all():
                raise NotFinite(f"NaN or infinite logits among images {start} to {start + len(logits_BC)}")
            found.append(logits_BC.argmax(-1).cpu())
    return torch.cat(found)


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float:
    """Top-1 accuracy, per cent."""
    return 100.0 * int((predicted_N == labels_N).sum()) / len(labels_N)
