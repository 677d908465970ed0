"""Scoring a classifier on a decoded test split.

Shape legend: N test images, B batch, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCORING_BATCH = 256
"""Images are scored in batches of this size, cut from the start, so that equal towers give equal bits."""


class NonFiniteLogits(ArithmeticError):
    """A classifier gave NaN or infinite logits: the run diverged, and its accuracy would mean nothing."""


@dataclass(frozen=True)
class Predictions:
    """The predicted class of each image, on the CPU.

    Attributes:
        all_classes: among all classes of the head, (N,).
        own_classes: among the classes the split holds, (N,); equal to ``all_classes`` where those are all.
    """

    all_classes: Tensor
    own_classes: Tensor


def predict_classes(
    total: int,
    features_of: Callable[[int, int], Tensor],
    classify: Callable[[Tensor], Tensor],
    own_C: Tensor | None = None,
) -> Predictions:
    """The predictions for ``total`` images.

    Args:
        features_of: ``features_of(start, stop)`` -> raw features (B, D) of those images.
        classify: features (B, D) -> logits (B, C).
        own_C: which classes the split holds, booleans; all by default.

    Raises:
        NonFiniteLogits: a logit is NaN or infinite.
    """
    of_all, of_own = [], []
    with torch.inference_mode():
        for start in range(0, total, SCORING_BATCH):
            logits_BC = classify(features_of(start, min(start + SCORING_BATCH, total)))
            if not torch.isfinite(logits_BC).all():
                raise NonFiniteLogits(f"NaN or infinite logits among images {start} to {start + len(logits_BC)}")
            of_all.append(logits_BC.argmax(-1).cpu())
            if own_C is not None:
                among = logits_BC.masked_fill(~own_C.to(logits_BC.device), -torch.inf)
                of_own.append(among.argmax(-1).cpu())
    found = torch.cat(of_all)
    return Predictions(found, torch.cat(of_own) if own_C is not None else found)


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float:
    """Top-1 accuracy, per cent."""
    return 100.0 * int((predicted_N == labels_N).sum()) / len(labels_N)
