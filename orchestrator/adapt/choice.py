"""Chooses a candidate by the held-out predictions, and estimates the accuracy of the choice on new images.

The best of several candidates is more accurate on the images by which it was chosen than on new images. The bootstrap
measures this optimism: 2,000 times, it draws images with repetition and compares the accuracy of the best candidate on
the drawn images with its accuracy on the images that were not drawn (Tsamardinos et al., 2018, "Bootstrapping the
out-of-sample predictions for efficient and accurate cross-validation"). The mean difference is subtracted from the
accuracy. Images of one series are drawn together, because they are right or wrong together.

The models of the folds share most of their training images, so their errors are correlated. The interval is therefore
wider than it would be for as many independent images (Bates, Hastie and Tibshirani, 2021, "Cross-validation: what does
it estimate and how well does it do it?"). The upper end of the interval is raised, because the final model learns from
more images than the models of the folds.

Shape legend: M candidates, N images, S series (an image by itself is one, too), R draws.
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


def choose(
    correct: Sequence[NDArray[np.bool_] | None], folds: int, series_N: NDArray[np.int64] | None = None
) -> Choice:
    """Return the candidate with the most correct images (the first if several tie), with the accuracy to expect.

    Args:
        correct: for each candidate, which of the N images it predicts correctly; ``None`` if it was not measured.
        folds: the number of folds.
        series_N: the number of each image's series; by default, no two images are of one series.
    """
    positions = [m for m, correct_N in enumerate(correct) if correct_N is not None]
    correct_MN = np.stack([correct_N for correct_N in correct if correct_N is not None])
    totals_M = correct_MN.sum(axis=1)
    best, images = int(totals_M.argmax()), correct_MN.shape[1]
    _, series_N, sizes_S = np.unique(
        np.arange(images) if series_N is None else series_N, return_inverse=True, return_counts=True
    )
    correct_MS = np.array([np.bincount(series_N, correct_N) for correct_N in correct_MN], dtype=np.float64)
    optimism = _optimism(correct_MS, sizes_S)
    expected = max(0.0, totals_M[best] / images - optimism)
    low, high = wilson_interval(expected, len(sizes_S) / DEPENDENT)
    # The final model learns from all folds, and its error falls at most as 1 / sqrt(training images).
    high = 100 - (100 - high) * ((folds - 1) / folds) ** 0.5
    level = [m for m in range(len(correct_MN)) if m != best and _mcnemar(correct_MS[best], correct_MS[m]) >= LEVEL]
    return Choice(positions[best], 100 * expected, low, high, 100 * optimism, tuple(positions[m] for m in level))


def _optimism(correct_MS: NDArray[np.float64], sizes_S: NDArray[np.int64]) -> float:
    """Return how much too high the best candidate's accuracy is on the images that were used to choose it, 0 to 1.

    Series are drawn at random many times. In each draw, the candidate with the highest accuracy on the drawn series is
    the best. The result is its accuracy on the drawn series minus its accuracy on the others, averaged over the draws.
    """
    candidates, series = correct_MS.shape
    if candidates == 1:
        return 0.0
    generator = numpy_generator("choice", candidates, series)
    weights_RS = generator.multinomial(series, np.full(series, 1 / series), size=DRAWS).astype(np.float32)
    correct_SM, sizes_S1 = correct_MS.T.astype(np.float32), sizes_S.astype(np.float32)[:, None]
    drawn_RM = weights_RS @ correct_SM / (weights_RS @ sizes_S1)
    left_RS = (weights_RS == 0).astype(np.float32)
    left_RM = left_RS @ correct_SM / np.maximum(left_RS @ sizes_S1, 1)
    best_R = drawn_RM.argmax(axis=1)
    rows_R = np.arange(DRAWS)
    return max(0.0, float((drawn_RM[rows_R, best_R] - left_RM[rows_R, best_R]).mean()))


def _mcnemar(one_S: NDArray[np.float64], other_S: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of the exact McNemar test, on series, that two classifiers are equally accurate."""
    wins, losses = int((one_S > other_S).sum()), int((other_S > one_S).sum())
    return float(binomtest(wins, wins + losses).pvalue) if wins + losses else 1.0
