"""Data efficiency: how many images per class a method needs to reach another method's score at some k.

Between measured k, the score on each dataset is interpolated linearly in log k. The 95 % interval of the number of
images contains every k at which the two scores may be equal: at such a k, the 95 % interval of their mean difference
over datasets contains 0.

Shape legend: K measured k, G points between them, N datasets.
"""

from dataclasses import dataclass

import numpy as np

from orchestrator.analysis.best_set import MIN_DATASETS, compare_datasets
from orchestrator.analysis.paired_tests import Floats, Ints

POINTS = 24
"""Number of interpolated points for each doubling of k."""
WIDEST_STEP = 4
"""Nothing is interpolated between two k whose ratio is larger than this."""


@dataclass(frozen=True)
class Images:
    """The number of images per class at which a method's mean score equals a given mean.

    Attributes:
        k: the number; ``None`` if the means are equal nowhere between the smallest and the largest k.
        low, high: ends of the 95 % interval; ``None`` for an end at or beyond the smallest or largest k.
        reached: whether the method's mean at the largest k is at least the given mean.
    """

    k: float | None
    low: float | None
    high: float | None
    reached: bool


def images_to_reach(ks: Ints, scores_KN: Floats, target_N: Floats) -> Images | None:
    """Return the k, with an interval, at which a method's mean score equals the mean of ``target_N``.

    Args:
        ks: the values of k at which the method was measured, increasing.
        scores_KN: the method's scores on each dataset at each k; higher is better.
        target_N: scores to reach on the same datasets.

    Returns:
        ``None`` with fewer than two values of k, with too large a step from one to the next, or with fewer than five
        datasets.
    """
    if len(ks) < 2 or (ks[1:] > WIDEST_STEP * ks[:-1]).any() or len(target_N) < MIN_DATASETS:
        return None
    x_K = np.log2(ks)
    x_G = np.linspace(x_K[0], x_K[-1], 1 + round(POINTS * float(x_K[-1] - x_K[0])))
    differences_GN = np.stack([np.interp(x_G, x_K, own_K) for own_K in scores_KN.T], axis=1) - target_N
    tests = compare_datasets(differences_GN)
    reached = np.flatnonzero(tests.difference >= 0)
    crosses = len(reached) > 0 and reached[0] > 0
    equal_G = (tests.lower <= 0) & (tests.upper >= 0)
    if crosses:
        # If intervals are narrow, 0 can lie between the intervals of two neighbouring points. The second of them then
        # counts as equal.
        equal_G[reached[0]] = True
    equal = np.flatnonzero(equal_G)
    inside = len(equal) > 0
    return Images(
        k=float(2 ** x_G[reached[0]]) if crosses else None,
        low=float(2 ** x_G[equal[0]]) if inside and equal[0] > 0 else None,
        high=float(2 ** x_G[equal[-1]]) if inside and equal[-1] < len(x_G) - 1 else None,
        reached=bool(tests.difference[-1] >= 0),
    )
