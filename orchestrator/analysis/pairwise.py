"""From tests of all pairs of methods to the best set.

A method is out of the best set if some other method is significantly better: one-sided p <= 0.05 / (m - 1) for m
methods. The truly best method leaves the set only if it loses one of its m - 1 tests, so it stays with a probability of
at least 95 %. These are comparisons with the best (Hsu, Annals of Statistics 12, 1984). Choosing the winner first and
testing it against the others would not keep the 95 %.

Shape legend: M methods, P pairs of methods; an entry (i, j) of an MM array is about method i compared with method j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis.comparison import Comparison, MethodScore, Pair, Scope
from orchestrator.analysis.paired_tests import Floats, Ints, PairedTests
from orchestrator.core.settings import SMALLEST_DIFFERENCE

ERROR_RATE = 0.05
"""Probability, at most, that the best set misses the truly best method."""


@dataclass(frozen=True)
class PairwiseTests:
    """The tests between all pairs of M methods, which the best set is made of.

    Attributes:
        difference_MM, lower_MM, upper_MM: lead of method i over method j with its 95 % interval; NaN if unknown.
        p_MM: one-sided p for "method i is better than method j"; 1 on the diagonal and where nothing can be said.
        n_MM: number of datasets (or seeds) that both have.
    """

    difference_MM: Floats
    lower_MM: Floats
    upper_MM: Floats
    p_MM: Floats
    n_MM: Ints


def significance_per_test(methods: int) -> float:
    """The p at which a one-sided test excludes a method, in a comparison of ``methods`` methods: 0.05 / (m - 1)."""
    return ERROR_RATE / max(methods - 1, 1)


def make_comparison(
    scores: Sequence[MethodScore],
    tests: PairwiseTests,
    more: Callable[[int, int], int | None],
    *,
    scope: Scope,
    images: int | None = None,
    smallest_difference: float = SMALLEST_DIFFERENCE,
) -> Comparison:
    """The comparison that pairwise tests add up to.

    If methods were measured on different datasets, tests can contradict each other: a circle in which every method is
    beaten. Then every method stays in the best set.

    Args:
        scores: one for each method, without ``difference``, ``interval`` and ``beaten_by``, which are filled in here.
        tests: arrays in the order of ``scores``.
        more: for two methods (i, j), how many more datasets or seeds would settle them.
    """
    beats_MM = np.asarray(tests.p_MM <= significance_per_test(len(scores)))
    if beats_MM.any(axis=0).all():
        beats_MM = np.zeros_like(beats_MM)
    beaten_M = np.asarray(beats_MM.any(axis=0))
    order = sorted(range(len(scores)), key=lambda i: (beaten_M[i], -scores[i].n, -scores[i].mean, scores[i].method))
    methods = []
    for i in order:
        rival = int(np.argmin(np.where(beats_MM[:, i], tests.p_MM[:, i], np.inf)))
        known = i != order[0] and tests.n_MM[i, order[0]] > 0
        methods.append(
            replace(
                scores[i],
                difference=float(tests.difference_MM[i, order[0]]) if known else None,
                interval=_interval(tests, i, order[0]) if known else None,
                beaten_by=scores[rival].method if beaten_M[i] else None,
            )
        )
    best = [i for i in order if not beaten_M[i]]
    pairs = []
    for place, i in enumerate(best):
        for j in best[place + 1 :]:
            interval = _interval(tests, i, j)
            level = interval is not None and max(-interval[0], interval[1]) <= smallest_difference
            difference = float(tests.difference_MM[i, j])
            pairs.append(
                Pair(
                    first=scores[i].method,
                    second=scores[j].method,
                    difference=difference if np.isfinite(difference) else None,
                    interval=interval,
                    n=int(tests.n_MM[i, j]),
                    level=level,
                    more=None if level else more(i, j),
                )
            )
    n = max((score.n for score in scores), default=0)
    return Comparison(scope, tuple(methods), tuple(pairs), n, images, smallest_difference)


def pairwise_tests(tests: PairedTests, methods: int, usable_P: NDArray[np.bool_]) -> PairwiseTests:
    """MM arrays from the tests of the pairs i < j, row by row.

    Args:
        usable_P: the pairs with data enough for a test. The others keep their difference and n, without p or interval.
    """
    lower, upper = np.where(usable_P, tests.lower, np.nan), np.where(usable_P, tests.upper, np.nan)
    p_first, p_second = np.where(usable_P, tests.p_first, 1.0), np.where(usable_P, tests.p_second, 1.0)
    return PairwiseTests(
        difference_MM=square(tests.difference, methods, -tests.difference),
        lower_MM=square(lower, methods, -upper),
        upper_MM=square(upper, methods, -lower),
        p_MM=square(p_first, methods, p_second, diagonal=1.0),
        n_MM=square(tests.n, methods).astype(int),
    )


def square(pairs_P: Floats | Ints, methods: int, mirrored_P: Floats | None = None, *, diagonal: float = 0.0) -> Floats:
    """An MM array of the values of the pairs i < j; entry (j, i) is the mirrored value, or the same one."""
    array_MM = np.full((methods, methods), diagonal)
    first, second = np.triu_indices(methods, 1)
    array_MM[first, second] = pairs_P
    array_MM[second, first] = pairs_P if mirrored_P is None else mirrored_P
    return array_MM


def _interval(tests: PairwiseTests, i: int, j: int) -> tuple[float, float] | None:
    lower, upper = float(tests.lower_MM[i, j]), float(tests.upper_MM[i, j])
    return (lower, upper) if np.isfinite([lower, upper]).all() else None
