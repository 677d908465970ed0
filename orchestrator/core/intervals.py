"""Confidence intervals of accuracies."""

import math
from statistics import NormalDist
from typing import Any

_Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def largest_unseen(images: Any) -> Any:
    """Return the upper end, in per cent, of the 95 % interval of a share of which no image is (Clopper-Pearson, 1934).

    ``images``: the number of images, or an array of such numbers.
    """
    return 100 * (1 - 0.025 ** (1 / images))


def wilson_interval(share: float, images: float, *, comparisons: int = 1) -> tuple[float, float]:
    """Return the 95 % confidence interval, in per cent, of a share that was measured on some images (Wilson, 1927).

    Args:
        share: the measured share of the images, from 0 to 1; for example the share that a model classifies correctly.
        images: the number of independent images.
        comparisons: the number of intervals that are looked at together. If there are several, each is wider, so that
            all of them are right at once in 95 % of cases (Bonferroni).
    """
    z = _Z if comparisons == 1 else NormalDist().inv_cdf(1 - 0.025 / comparisons)
    centre = (share + z**2 / (2 * images)) / (1 + z**2 / images)
    half = z / (1 + z**2 / images) * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)
