"""Two paired tests over many pairs of methods at once: Student's t and Wilcoxon's exact signed-rank test.

Both return the same record, so that a caller can choose by the number of datasets alone. Each estimate and interval
belongs to its test: the mean and Student's interval to t, Hodges and Lehmann's to the signed-rank test.

Shape legend: P pairs of methods, N datasets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtr, stdtrit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

CONFIDENCE = 0.95
EXACT_UP_TO = 50
"""Up to this many differences the signed-rank test counts every assignment of signs."""
_DIGITS = 9
"""Differences are rounded to this many digits, so that rounding errors do not break ties."""


@dataclass(frozen=True)
class PairedTests:
    """One paired test for each of P pairs of methods.

    Attributes:
        difference: estimated difference, first method minus second; NaN without a shared dataset.
        lower, upper: ends of the two-sided 95 % confidence interval; NaN with fewer than two shared datasets.
        p_first, p_second: one-sided p for "the first method is better" and "the second is"; 1 if nothing can be said.
        effect: the size of the difference in standard deviations of one dataset's difference, which power depends on.
        n: number of shared datasets.
    """

    difference: Floats
    lower: Floats
    upper: Floats
    p_first: Floats
    p_second: Floats
    effect: Floats
    n: Ints


def paired_t_tests(differences_PN: Floats) -> PairedTests:
    """Student's paired t-test for every row. NaN marks a dataset that the pair does not share.

    A row whose differences are all 0 has p = 1 on both sides and an interval of width 0.
    """
    differences_PN = np.round(differences_PN, _DIGITS)
    n = np.isfinite(differences_PN).sum(axis=1)
    total = np.nansum(differences_PN, axis=1)
    mean = np.divide(total, n, out=np.full(len(n), np.nan), where=n > 0)
    squares = np.nansum((differences_PN - mean[:, None]) ** 2, axis=1)
    squares[np.nanmax(np.abs(differences_PN - mean[:, None]), axis=1, initial=0) < 10.0**-_DIGITS] = 0
    freedom = np.maximum(n - 1, 1)
    error = np.where(n > 1, np.sqrt(squares / freedom / np.maximum(n, 1)), np.nan)
    t = t_values(mean, error)
    p_first, p_second = (np.where(np.isnan(t), 1.0, stdtr(freedom, tail)) for tail in (-t, t))
    half = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    return PairedTests(mean, mean - half, mean + half, p_first, p_second, np.abs(t) / np.sqrt(np.maximum(n, 1)), n)


def t_values(difference: Floats, error: Floats) -> Floats:
    """difference / error; infinite if only the error is 0, and NaN if both are or the error is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(difference / error)


def signed_rank_tests(differences_PN: Floats) -> PairedTests:
    """Wilcoxon's signed-rank test for every row. NaN marks a dataset that the pair does not share.

    Differences of 0 are dropped, as Wilcoxon did. Given that two methods differ on a dataset, either sign is equally
    likely under the null hypothesis, so the test stays exact. Up to ``EXACT_UP_TO`` differences p is exact, ties
    included: all 2^N assignments of signs to the shared ranks are counted. With more, p is the normal approximation
    with the variance corrected for ties.

    The estimate is Hodges and Lehmann's: the median of the averages of two differences (each with itself as well). The
    interval consists of the same averages between the critical ranks (Hollander, Wolfe and Chicken 2013, section 3.3).
    """
    from scipy.stats import rankdata  # takes a second to import

    differences_PN = np.round(differences_PN, _DIGITS)
    shared_PN = np.isfinite(differences_PN)
    known_PN = np.where(shared_PN, differences_PN, 0.0)
    signs_PN = np.sign(known_PN)
    dropped = (signs_PN == 0).sum(axis=1, keepdims=True)
    ranks_PN = np.where(signs_PN == 0, 0.0, rankdata(np.abs(known_PN), axis=1) - dropped)
    positive, negative = (ranks_PN * (signs_PN > 0)).sum(axis=1), (ranks_PN * (signs_PN < 0)).sum(axis=1)
    p_first, p_second = _signed_rank_p(ranks_PN, np.stack([negative, positive]))
    n = shared_PN.sum(axis=1)
    effect = np.maximum(-ndtri(np.minimum(p_first, p_second)), 0) / np.sqrt(np.maximum(n, 1))
    estimates_3P = np.full((3, len(n)), np.nan)
    for count in np.unique(n[n > 0]):
        own = n == count
        estimates_3P[:, own] = _hodges_lehmann(differences_PN[own][shared_PN[own]].reshape(-1, count))
    return PairedTests(estimates_3P[0], estimates_3P[1], estimates_3P[2], p_first, p_second, effect, n)


def _signed_rank_p(ranks_PN: Floats, sums_2P: Floats) -> Floats:
    """P(sum <= observed) for each observed sum of ranks; a rank of 0 stands for a dropped difference."""
    p_2P = np.ones_like(sums_2P)
    many = (ranks_PN > 0).sum(axis=1) > EXACT_UP_TO
    variance = (ranks_PN[many] ** 2).sum(axis=1) / 4
    p_2P[:, many] = ndtr((sums_2P[:, many] - ranks_PN[many].sum(axis=1) / 2 + 0.5) / np.sqrt(variance))
    few = np.flatnonzero(~many)
    # Twice the ranks are whole numbers: ranks that ties share are multiples of one half.
    doubled_PN, doubled_2P = np.rint(2 * np.sort(ranks_PN, axis=1)).astype(int), np.rint(2 * sums_2P).astype(int)
    distinct, place_P = np.unique(doubled_PN[few], axis=0, return_inverse=True)
    for place, ranks_N in enumerate(distinct):
        own = few[place_P == place]
        p_2P[:, own] = _null_distribution(ranks_N[ranks_N > 0])[doubled_2P[:, own]]
    return p_2P


def _null_distribution(ranks_N: Ints) -> Floats:
    """P(sum of the positive ranks <= s) for s = 0, 1, ..., if every rank is positive with a probability of one half."""
    chances = np.zeros(ranks_N.sum() + 1)
    chances[0] = 1.0
    for rank in ranks_N:
        chances[rank:] = chances[rank:] + chances[:-rank]
        chances /= 2
    return np.asarray(chances.cumsum())


@cache
def _critical_rank(n: int) -> int:
    """Return the largest s with P(sum of ranks <= s) <= 2.5 %; -1 if there is none."""
    tail = (1 - CONFIDENCE) / 2
    if n > EXACT_UP_TO:
        return math.floor(n * (n + 1) / 4 + float(ndtri(tail)) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24) - 0.5)
    return int(np.searchsorted(_null_distribution(np.arange(1, n + 1)), tail, side="right")) - 1


def _hodges_lehmann(differences_PN: Floats) -> Floats:
    """For each row the median of the averages of two differences, and the ends of its interval.

    The ends are infinite if N is too small for an interval.
    """
    count = differences_PN.shape[1]
    first, second = np.triu_indices(count)
    averages = np.sort((differences_PN[:, first] + differences_PN[:, second]) / 2, axis=1)
    estimates, rank = np.median(averages, axis=1), _critical_rank(count)
    if rank < 0:
        return np.stack([estimates, np.full_like(estimates, -np.inf), np.full_like(estimates, np.inf)])
    return np.stack([estimates, averages[:, rank], averages[:, -1 - rank]])
