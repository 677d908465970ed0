"""Paired t-tests over many pairs of methods at once, and intervals that allow for skew.

Shape legend: P pairs of methods, N datasets.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from orchestrator.analysis import CONFIDENCE

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALL_SKEW_FROM = 16
"""With this many datasets or more, corrections for skew use the whole sample skewness. With a smaller number n, they
use n / 16 of it.

Few datasets estimate the skewness badly, and a correction for all of it costs power.
"""
_DIGITS = 9
"""Differences are rounded to this many digits, so that rounding errors do not break ties."""
_NO_SKEW = 1e-6
"""A smaller skewness is not corrected for: the correction would be the difference of two nearly equal numbers."""


@dataclass(frozen=True)
class PairedTests:
    """One paired test for each of P pairs of methods.

    Attributes:
        difference: mean difference, first method minus second; NaN without a shared dataset.
        lower, upper: ends of the two-sided interval, by default of 95 %; NaN with fewer than two shared datasets.
        p_first: one-sided p-value for "the first method is better"; 1 without a test.
        p_second: one-sided p-value for "the second method is better"; 1 without a test.
        deviation: standard deviation of the differences over datasets; NaN with fewer than two shared datasets.
        n: number of shared datasets.
    """

    difference: Floats
    lower: Floats
    upper: Floats
    p_first: Floats
    p_second: Floats
    deviation: Floats
    n: Ints


def paired_t_tests(differences_PN: Floats, confidence: float = CONFIDENCE) -> PairedTests:
    """Return Student's paired t-test of every row. NaN marks a dataset that the pair does not share.

    A row whose differences are all 0 has p = 1 on both sides and an interval of width 0. ``confidence``: the level of
    the intervals.
    """
    differences_PN = rounded(differences_PN)
    n = np.isfinite(differences_PN).sum(axis=1)
    mean = np.divide(np.nansum(differences_PN, axis=1), n, out=np.full(len(n), np.nan), where=n > 0)
    squares = np.nansum((differences_PN - mean[:, None]) ** 2, axis=1)
    squares[np.nanmax(np.abs(differences_PN - mean[:, None]), axis=1, initial=0) < 10.0**-_DIGITS] = 0
    freedom = np.maximum(n - 1, 1)
    deviation = np.where(n > 1, np.sqrt(squares / freedom), np.nan)
    error = deviation / np.sqrt(np.maximum(n, 1))
    t = t_values(mean, error)
    p_first, p_second = (np.where(np.isnan(t), 1.0, stdtr(freedom, tail)) for tail in (-t, t))
    half = stdtrit(freedom, (1 + confidence) / 2) * error
    return PairedTests(mean, mean - half, mean + half, p_first, p_second, deviation, n)


def rounded(differences: Floats) -> Floats:
    """Return ``differences`` without rounding errors."""
    return np.round(differences, _DIGITS)


def t_values(difference: Floats, error: Floats) -> Floats:
    """Return difference / error: infinite if only the error is 0, NaN if both are 0 or the error is unknown."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(difference / error)


def with_skew_intervals(
    tests: PairedTests, differences_PN: Floats, rows_P: NDArray[np.bool_], confidence: float = CONFIDENCE
) -> PairedTests:
    """Return the tests with some intervals corrected for skew: those of the pairs for which ``rows_P`` is true.

    The correction uses Hall's transformation of t (:func:`hall_t`). It is monotone and has an inverse in closed form
    (Hall, Journal of the Royal Statistical Society B 54, 1992). A corrected interval contains the means whose
    transformed t is between the t quantiles.
    """
    n = np.maximum(tests.n, 2)
    skew = _skew_weight(n) * skewness(tests, differences_PN) / np.sqrt(n)
    plain = np.abs(skew) < _NO_SKEW
    error, quantile = tests.deviation / np.sqrt(n), stdtrit(n - 1, (1 + confidence) / 2)

    def t_of(transformed: Floats) -> Floats:
        """Return the t that Hall's transformation maps to ``transformed``."""
        cube_root = np.cbrt(1 + skew * (transformed - skew / 6))
        return np.where(plain, transformed, 3 * np.divide(cube_root - 1, skew, where=~plain, out=np.zeros(len(n))))

    lower, upper = tests.difference - error * t_of(quantile), tests.difference - error * t_of(-quantile)
    return replace(tests, lower=np.where(rows_P, lower, tests.lower), upper=np.where(rows_P, upper, tests.upper))


def skewness(tests: PairedTests, differences_PN: Floats) -> Floats:
    """Return the sample skewness of every row; 0 for a row without spread."""
    centred_PN, n = rounded(differences_PN) - tests.difference[:, None], np.maximum(tests.n, 2)
    cubes, squares = (np.nansum(centred_PN**power, axis=1) / n for power in (3, 2))
    return np.asarray(np.divide(cubes, squares**1.5, out=np.zeros(len(n)), where=tests.deviation > 0))


def hall_t(mean: Floats, squares: Floats, cubes: Floats, n: Ints) -> Floats:
    """Return Student's t with Hall's correction for skew: t + g t^2 / 3 + g^2 t^3 / 27 + g / 6.

    Here g is the sample skewness, divided by the root of n. For few datasets, only a share of it is used
    (``ALL_SKEW_FROM``). The arguments broadcast.

    Args:
        mean, squares, cubes: means of a sample's values, of their squares and of their cubes. The squares must be of
            the order of 1.
        n: number of values, at least 2.
    """
    variance = np.maximum(squares - mean**2, 1e-14)
    t = mean * np.sqrt((n - 1) / variance)
    third = cubes - mean * (3 * squares - 2 * mean**2)
    g = np.where(variance > 1e-12, third / (variance * np.sqrt(variance)), 0.0) * (_skew_weight(n) / np.sqrt(n))
    shift = 1 + g * t / 3  # t * (shift + (shift - 1)^2 / 3) is t + g t^2 / 3 + g^2 t^3 / 27
    return np.asarray(t * (shift + (shift - 1) ** 2 / 3) + g / 6)


def _skew_weight(n: Ints) -> Floats:
    """Return the share of the sample skewness that corrections use: n / ``ALL_SKEW_FROM``, at most 1."""
    return np.asarray(np.minimum(n / ALL_SKEW_FROM, 1.0))
