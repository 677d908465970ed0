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
    p_first, p_second = one_sided_p(mean, error, freedom)
    half = half_width(error, freedom)
    effect = np.abs(t_values(mean, error)) / np.sqrt(np.maximum(n, 1))
    return PairedTests(mean, mean - half, mean + half, p_first, p_second, effect, n)


def t_values(difference: Floats, error: Floats) -> Floats:
    """difference / error; infinite if only the error is 0, and NaN if both are or the error is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(difference / error)


def one_sided_p(difference: Floats, error: Floats, freedom: Floats | Ints) -> tuple[Floats, Floats]:
    """p of the t-test for "greater than 0" and for "less than 0"; both are 1 where t is NaN."""
    t = t_values(difference, error)
    return np.where(np.isnan(t), 1.0, stdtr(freedom, -t)), np.where(np.isnan(t), 1.0, stdtr(freedom, t))


def half_width(error: Floats, freedom: Floats | Ints) -> Floats:
    """Half the width of the 95 % interval: the t quantile times the standard error."""
    half: Floats = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error
    return half


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
    counts = (ranks_PN > 0).sum(axis=1)
    p_2P = np.ones_like(sums_2P)
    untied = (np.sort(ranks_PN, axis=1) == _ranks_without_ties(counts, ranks_PN.shape[1])).all(axis=1)
    for count in np.unique(counts[untied & (counts <= EXACT_UP_TO)]):
        own = untied & (counts == count)
        p_2P[:, own] = _null_distribution(int(count))[np.rint(sums_2P[:, own]).astype(int)]
    for row in np.flatnonzero(~untied & (counts <= EXACT_UP_TO)):
        p_2P[:, row] = _p_with_ties(ranks_PN[row], sums_2P[:, row])
    many = counts > EXACT_UP_TO
    variance = (ranks_PN[many] ** 2).sum(axis=1) / 4
    p_2P[:, many] = ndtr((sums_2P[:, many] - ranks_PN[many].sum(axis=1) / 2 + 0.5) / np.sqrt(variance))
    return p_2P


def _ranks_without_ties(counts: Ints, size: int) -> Floats:
    """For each row the sorted ranks it has without ties: zeros, then 1, 2, ..., count."""
    places = np.arange(1, size + 1) - (size - counts[:, None])
    return np.asarray(np.maximum(places, 0), dtype=float)


def _p_with_ties(ranks_N: Floats, sums_2: Floats) -> Floats:
    """P(sum <= observed) of one pair, by adding one rank after another to the distribution of the sum."""
    doubled_N = np.rint(2 * ranks_N).astype(int)  # shared ranks are multiples of one half
    chances = np.zeros(doubled_N.sum() + 1)
    chances[0] = 1.0
    for rank in doubled_N[doubled_N > 0]:
        chances[rank:] = chances[rank:] + chances[:-rank]
        chances /= 2
    return np.asarray(chances.cumsum()[np.rint(2 * sums_2).astype(int)])


@cache
def _null_distribution(n: int) -> Floats:
    """P(sum of the positive ranks <= s) for s = 0, 1, ... of n differences without ties."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        chances[rank:] = chances[rank:] + chances[:-rank]
        chances /= 2
    return np.asarray(chances.cumsum())


@cache
def _critical_rank(n: int) -> int:
    """The largest s with P(sum of ranks <= s) <= 2.5 %; -1 if there is none."""
    tail = (1 - CONFIDENCE) / 2
    if n > EXACT_UP_TO:
        return math.floor(n * (n + 1) / 4 + float(ndtri(tail)) * math.sqrt(n * (n + 1) * (2 * n + 1) / 24) - 0.5)
    return int(np.searchsorted(_null_distribution(n), tail, side="right")) - 1


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
