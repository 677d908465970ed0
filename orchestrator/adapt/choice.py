"""Chooses a candidate by the held-out predictions, and estimates the accuracy of the choice on new images.

The best of several candidates is more accurate on the images by which it was chosen than on new images. The bootstrap
measures this optimism: 2,000 times, it draws images with repetition and compares the accuracy of the best candidate on
the drawn images with its accuracy on the images that were not drawn (Tsamardinos et al., 2018, "Bootstrapping the
out-of-sample predictions for efficient and accurate cross-validation"). The mean difference is subtracted from the
accuracy.

The models of the folds share most of their training images, so their errors are correlated. The interval is therefore
wider than it would be for as many independent images (Bates, Hastie and Tibshirani, 2021, "Cross-validation: what does
it estimate and how well does it do it?"). The upper end of the interval is raised, because the final model learns from
more images than the models of the folds.

Shape legend: M candidates, N images, R draws.
"""

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
"""Two candidates are level if the exact McNemar test of their predictions has at least this p-value."""


@dataclass(frozen=True)
class Choice:
    """The chosen candidate, and the accuracy to expect.

    Attributes:
        best: position of the chosen candidate, from 0.
        expected, low, high: accuracy on new images and its 95 % interval, per cent; ``None`` if nothing was held out.
        optimism: percentage points by which the held-out accuracy of the best candidate is expected to be too high.
        level: positions of the other candidates that cannot be told apart from the best.
    """

    best: int
    expected: float | None = None
    low: float | None = None
    high: float | None = None
    optimism: float = 0.0
    level: tuple[int, ...] = ()


def choose(correct: Sequence[NDArray[np.bool_] | None], folds: int, apart: int | None = None) -> Choice:
    """Return the candidate with the most correct images (the first if several tie), with the accuracy to expect.

    Args:
        correct: for each candidate, which of the N images it predicts correctly; ``None`` if it was not measured.
        folds: the number of folds.
        apart: how many images and series of images are independent of each other; by default, all images.
    """
    positions = [m for m, correct_N in enumerate(correct) if correct_N is not None]
    correct_MN = np.stack([correct_N for correct_N in correct if correct_N is not None])
    totals_M = correct_MN.sum(axis=1)
    best, images = int(totals_M.argmax()), correct_MN.shape[1]
    optimism = _optimism(correct_MN)
    expected = max(0.0, totals_M[best] / images - optimism)
    low, high = wilson_interval(expected, (apart or images) / DEPENDENT)
    # The final model learns from all folds, and its error falls at most as 1 / sqrt(training images).
    high = 100 - (100 - high) * ((folds - 1) / folds) ** 0.5
    level = [m for m in range(len(correct_MN)) if m != best and _mcnemar(correct_MN[best], correct_MN[m]) >= LEVEL]
    return Choice(positions[best], 100 * expected, low, high, 100 * optimism, tuple(positions[m] for m in level))


def _optimism(correct_MN: NDArray[np.bool_]) -> float:
    """Return how much too high the best candidate's accuracy is on the images that were used to choose it, 0 to 1.

    Images are drawn at random many times. In each draw, the candidate with the highest accuracy on the drawn images is
    the best. The result is its accuracy on the drawn images minus its accuracy on the others, averaged over the draws.
    """
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
