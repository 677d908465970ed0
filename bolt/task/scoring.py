"""Predicted classes, their probabilities and the accuracy of a classifier on a test split.

Shape legend: N test images, B batch, C classes, D embedding width.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

SCORING_BATCH = 256
"""Images per batch. A split is always cut into the same batches, so equal towers give bit-identical logits."""


class NonFiniteLogits(ArithmeticError):
    """A classifier gave NaN or infinite logits: its training diverged, and an accuracy would be meaningless."""


@dataclass(frozen=True)
class Predictions:
    """The predicted class of each image, on the CPU.

    Attributes:
        all_classes: argmax over all classes of the head, (N,).
        probability: softmax probability of the class in ``all_classes``, float32 (N,).
        own_classes: argmax over the classes that occur in the split, (N,).
    """

    all_classes: Tensor
    probability: Tensor
    own_classes: Tensor


def predict_classes(
    total: int,
    features_of: Callable[[int, int], Tensor],
    classify: Callable[[Tensor], Tensor],
    own_C: Tensor | None = None,
) -> Predictions:
    """Classify the images of a test split.

    Args:
        total: number of images, N.
        features_of: ``features_of(start, stop)`` -> raw features (B, D) of images ``start`` to ``stop - 1``.
        classify: features (B, D) -> logits (B, C).
        own_C: boolean, whether each class occurs in the split; ``None`` if all classes occur.

    Raises:
        NonFiniteLogits: if a logit is NaN or infinite.
    """
    finite, all_classes, probability, own_classes = [], [], [], []
    with torch.inference_mode():
        for start, stop in scoring_batches(total):
            logits_BC = classify(features_of(start, stop))
            finite.append(torch.isfinite(logits_BC).all())
            all_classes.append(logits_BC.argmax(-1))
            probability.append(logits_BC.float().softmax(-1).amax(-1))
            if own_C is not None:
                own_C = own_C.to(logits_BC.device)
                own_classes.append(logits_BC.masked_fill(~own_C, -torch.inf).argmax(-1))
    # All checks for finite logits are read here at once, because every read makes the GPU wait.
    for (start, stop), batch_is_finite in zip(scoring_batches(total), torch.stack(finite).tolist(), strict=True):
        if not batch_is_finite:
            raise NonFiniteLogits(f"NaN or infinite logits among images {start} to {stop}")
    predicted_N = torch.cat(all_classes).cpu()
    own_N = torch.cat(own_classes).cpu() if own_C is not None else predicted_N
    return Predictions(predicted_N, torch.cat(probability).cpu(), own_N)


def logits_of(classes: range, count: int, classify: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return a function that gives the logits of ``classes`` alone, of ``count`` classes in all.

    The function raises ``ValueError`` if ``classify`` gives more logits, or none for some of ``classes``.
    """

    def of_classes(features_BD: Tensor) -> Tensor:
        logits_BC = classify(features_BD)
        if not classes.stop <= logits_BC.shape[-1] <= count:
            raise ValueError(f"the classifier gives {logits_BC.shape[-1]} logits for {count} classes")
        return logits_BC[:, classes.start : classes.stop]

    return of_classes


def scoring_batches(total: int) -> list[tuple[int, int]]:
    """Return the start and stop of every batch when ``total`` images are cut into batches of ``SCORING_BATCH``."""
    return [(start, min(start + SCORING_BATCH, total)) for start in range(0, total, SCORING_BATCH)]


def accuracy(predicted_N: Tensor, labels_N: Tensor) -> float:
    """Return the top-1 accuracy in per cent."""
    return 100.0 * int((predicted_N == labels_N).sum()) / len(labels_N)
