"""The choice among candidates by their held-out predictions, and the accuracy to expect of it.

The best of several candidates looks better on the images it was chosen by than on new ones. The bootstrap measures
that: in each of 2,000 draws of the images with repetition, the best candidate on the draw is scored on the images that
were not drawn (Tsamardinos et al., 2018, "Bootstrapping the out-of-sample predictions for efficient and accurate
cross-validation"). The mean loss is subtracted.

The interval is wider than for as many independent images, because the folds' models share most of their images (Bates,
Hastie and Tibshirani, 2021, "Cross-validation: what does it estimate and how well does it do it?"). It reaches further
up than down: the final model has learned from all images, and the measured ones had fewer.

Shape legend: M candidates, N images, R draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from bolt.model.threshold import DEPENDENT
from bolt.seeds import numpy_generator
from orchestrator.core.intervals import wilson_interval

DRAWS = 2000
LEVEL = 0.05
"""A candidate is level with the best if an exact McNemar test of the two has at least this p-value."""


@dataclass(frozen=True)
class Choice:
    """The chosen candidate and what to expect of it.

    Attributes:
        best: position of the chosen candidate, from 0.
        expected, low, high: accuracy on new images and its 95 % interval, per cent; ``None`` if nothing was held out.
        optimism: how far the held-out accuracy is too high because the best candidate was chosen by it, in points.
        level: positions of the other candidates that cannot be told apart from the best.
    """

    best: int
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    optimism: float = 0.0
    level: tuple[int, ...] = ()


def choose(correct: Sequence[NDArray[np.bool_] | None], folds: int) -> Choice:
    """Return the candidate with the most correct images (the first if several tie), with the accuracy to expect.

    Args:
        correct: which of the N images each candidate predicts correctly; ``None`` for one that was not measured.
        folds: how many folds the images were divided into.
    """
    positions = [m for m, correct_N in enumerate(correct) if correct_N is not None]
    correct_MN = np.stack([correct_N for correct_N in correct if correct_N is not None])
    totals_M = correct_MN.sum(axis=1)
    best, images = int(totals_M.argmax()), correct_MN.shape[1]
    optimism = _optimism(correct_MN)
    expected = max(0.0, totals_M[best] / images - optimism)
    low, high = wilson_interval(expected, images / DEPENDENT)
    high = 100 - (100 - high) * ((folds - 1) / folds) ** 0.5  # errors fall at most with the root of the images
    level = [m for m in range(len(correct_MN)) if m != best and _mcnemar(correct_MN[best], correct_MN[m]) >= LEVEL]
    return Choice(positions[best], 100 * expected, low, high, 100 * optimism, tuple(positions[m] for m in level))


def _optimism(correct_MN: NDArray[np.bool_]) -> float:
    """Return how much better the best candidate is, on average, on the images that chose it; at least 0."""
    candidates, images = correct_MN.shape
    if candidates == 1:
        return 0.0
    generator = numpy_generator("choice", candidates, images)
    weights_RN = generator.multinomial(images, np.full(images, 1 / images), size=DRAWS).astype(np.float32)
    drawn_RM = weights_RN @ correct_MN.T.astype(np.float32) / images
    left_RN = (weights_RN == 0).astype(np.float32)
    left_RM = left_RN @ correct_MN.T.astype(np.float32) / np.maximum(left_RN.sum(axis=1, keepdims=True), 1)
    best_R = drawn_RM.argmax(axis=1)
    rows_R = np.arange(DRAWS)
    return max(0.0, float((drawn_RM[rows_R, best_R] - left_RM[rows_R, best_R]).mean()))


def _mcnemar(one_N: NDArray[np.bool_], other_N: NDArray[np.bool_]) -> float:
    """Return the two-sided p-value of the exact McNemar test that two classifiers are equally accurate."""
    wins, losses = int((one_N & ~other_N).sum()), int((other_N & ~one_N).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
