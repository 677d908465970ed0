"""The joint test over datasets: is a method worse than the best of several rivals?

If a method is as good as its rivals, both signs of the differences on a dataset are equally likely. So the signs of
whole datasets are flipped, for all rivals at once. The largest statistic of all rivals is compared with its values
after the flips. This keeps the correlation between rivals, so rivals that win on the same datasets count nearly as one
(Romano and Wolf, Journal of the American Statistical Association 100, 2005, for tests of this kind). The statistic is
Student's t with Hall's correction for skew, :func:`orchestrator.analysis.paired_tests.hall_t`.

Shape legend: F flips, D datasets, P pairs of methods.
"""

from functools import cache

import numpy as np

from orchestrator.analysis.paired_tests import Floats, hall_t, rounded

ALL_FLIPS_UP_TO = 12
"""With n datasets, all 2^n flips are used if n is at most this number. With more datasets, 2^12 flips are used: the
identity and random flips."""
_TIE = 1e-9
"""Statistics with a smaller relative difference count as equal."""


@cache
def flips(datasets: int) -> Floats:
    """Return the signs of all flips, (F, D). The first row flips nothing.

    The same number of datasets always gives the same signs.
    """
    if datasets <= ALL_FLIPS_UP_TO:
        return np.asarray(1.0 - 2.0 * (np.arange(2**datasets)[:, None] >> np.arange(datasets) & 1))
    signs_FD = np.random.default_rng(datasets).choice([-1.0, 1.0], size=(2**ALL_FLIPS_UP_TO, datasets))
    signs_FD[0] = 1.0
    return signs_FD


def flipped_statistics(differences_PD: Floats) -> Floats:
    """Return the statistic of every pair after every flip, (P, F).

    A difference is NaN on a dataset that the pair does not share. The first column of the result has the observed
    statistics. The row of a pair is 0 if all its differences are 0, or if it shares no dataset.
    """
    n_P1 = np.maximum(np.isfinite(differences_PD).sum(axis=1, keepdims=True), 2)
    known_PD = np.nan_to_num(rounded(differences_PD))
    size_P1 = np.sqrt((known_PD**2).sum(axis=1, keepdims=True) / n_P1)
    unit_PD = np.divide(known_PD, size_P1, out=np.zeros_like(known_PD), where=size_P1 > 0)
    signs_DF = flips(unit_PD.shape[1]).T
    return hall_t(
        unit_PD @ signs_DF / n_P1, (unit_PD**2).sum(axis=1, keepdims=True) / n_P1, unit_PD**3 @ signs_DF / n_P1, n_P1
    )


def joint_p(statistics_PF: Floats) -> float:
    """Return the share of flips after which the largest statistic is at least the largest observed statistic."""
    largest_F = statistics_PF.max(axis=0)
    return float((largest_F >= largest_F[0] - _TIE * max(1.0, abs(largest_F[0]))).mean())
