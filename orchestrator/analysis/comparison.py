"""Makes a verdict from tests of all pairs of methods. It names the methods that may be the best: the best set.

A method leaves the best set if another method of the set is significantly better. The remaining methods are then
tested again among themselves, until none leaves. So the truly best method leaves only if one of these tests is wrong,
and it stays with a probability of 95 % (docs/verdict.md has the simulations). The procedure is a stepwise comparison
with the best (Hsu, Annals of Statistics 12, 1984). A single test of the observed winner against all other methods would
not guarantee this probability.

``best_set`` makes the tests over datasets, ``one_dataset`` on one dataset.

Shape legend: M methods, P pairs of methods. An entry (i, j) of a matrix (M, M) compares method i with method j.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis import SMALLEST_DIFFERENCE
from orchestrator.analysis.paired_tests import Floats, Ints, PairedTests
from orchestrator.analysis.verdict import MethodScore, Pair, Scope, Verdict

LEVEL = 0.045
"""The p-value up to which a method is excluded. It is below 0.05 because each step of :func:`eliminate` may exclude the
truly best method. Over all steps, the best set misses this method in at most 5 % of cases."""
SURE = 0.005
"""An exclusion at this p-value or a smaller one is wrong in at most 5 % of cases, even if the rivals of the excluded
method are usually a little better and at times much worse."""

Test = Callable[[Ints], tuple[Floats, Ints]]
"""Maps the positions of the remaining methods to the p-value and the strongest rival of each."""


def pairwise_test(p_MM: Floats, usable_MM: NDArray[np.bool_]) -> Test:
    """Return a test that allows for the number of rivals (Bonferroni's correction).

    A method's p-value is the smallest p-value at which any rival is better, multiplied by the number of rivals.

    Args:
        p_MM: one-sided p-value for "method i is better than method j".
        usable_MM: the pairs with enough data for a test. The two methods of any other pair are no rivals.
    """

    def test(left: Ints) -> tuple[Floats, Ints]:
        """Return the p-value and the strongest rival of each remaining method."""
        among = np.ix_(left, left)
        p, rivals = np.where(usable_MM[among], p_MM[among], 1.0), usable_MM[among].sum(axis=0)
        return np.minimum(p.min(axis=0) * np.maximum(rivals, 1), 1.0), left[p.argmin(axis=0)]

    return test


def eliminate(methods: int, test: Test, level: float = LEVEL) -> tuple[Ints, Floats]:
    """Return for each method the position of the method that excludes it, and the p-value.

    The position is -1 for the methods of the best set. If methods were measured on different datasets, tests can
    contradict each other, so that every remaining method loses to another. All remaining methods then stay.
    """
    beaten_by, p_M = np.full(methods, -1), np.ones(methods)
    while len(left := np.flatnonzero(beaten_by < 0)) > 1:
        p, rivals = test(left)
        out = p <= level
        if not out.any() or out.all():
            break
        beaten_by[left[out]], p_M[left[out]] = rivals[out], p[out]
    return beaten_by, p_M


def by_pair(methods: int, of_first: NDArray[Any], of_second: NDArray[Any], diagonal: Any) -> NDArray[Any]:
    """Return a matrix (M, M) with the values of all pairs i < j, and with the value ``diagonal`` at every (i, i).

    The values in ``of_first`` are placed at (i, j), those in ``of_second`` at (j, i).
    """
    first, second = np.triu_indices(methods, 1)
    values_MM = np.full((methods, methods), diagonal)
    values_MM[first, second], values_MM[second, first] = of_first, of_second
    return values_MM


def make_verdict(
    scores: Sequence[MethodScore],
    tests: PairedTests,
    usable_P: NDArray[np.bool_],
    eliminated: tuple[Ints, Floats],
    more: Callable[[int, float], tuple[int | None, int | None]],
    *,
    scope: Scope,
    images: int | None = None,
    smallest_difference: float = SMALLEST_DIFFERENCE,
    skewed_M: NDArray[np.bool_] | None = None,
    raced: bool = False,
) -> Verdict:
    """Return the verdict that results from tests of all pairs.

    Args:
        scores: one for each method. The fields ``difference``, ``interval`` and ``beaten_by`` are filled in here.
        tests: the tests of the pairs i < j of ``scores``, in the order of ``np.triu_indices``.
        usable_P: the pairs with enough data for a test. Other pairs keep their difference and n, without an interval.
        eliminated: the excluded methods, as :func:`eliminate` returns them.
        more: computes the fields ``more`` and ``more_seeds`` of a :class:`Pair`, from the pair's position in ``tests``
            and the largest p-value at which a test of one pair excludes a method of the best set.
        skewed_M: the methods whose exclusion is doubtful unless its p-value is very small; by default none.
        raced: whether a race excluded the methods.
    """
    beaten_by_M, p_M = eliminated
    beaten_M = beaten_by_M >= 0
    places = np.arange(len(usable_P))
    place_MM = by_pair(len(scores), places, places, 0)

    def lead(i: int, j: int) -> tuple[float | None, tuple[float, float] | None]:
        """Return the lead of method i over method j and its interval; ``None`` for an unknown value."""
        place = place_MM[i, j]
        difference, lower, upper = (float(of[place]) for of in (tests.difference, tests.lower, tests.upper))
        if i > j:
            difference, lower, upper = (0.0 - value for value in (difference, upper, lower))  # no -0.0
        lower, upper = max(lower, -100.0), min(upper, 100.0)  # scores are in per cent
        known = usable_P[place] and np.isfinite([lower, upper]).all()
        return difference if np.isfinite(difference) else None, (lower, upper) if known else None

    most = max((score.n for score in scores), default=0)

    def rank(i: int) -> tuple[bool, int, float, str]:
        score = scores[i]
        every_seed = scope != "datasets" and not score.seeds  # the method has one score for all seeds
        return bool(beaten_M[i]), -(most if every_seed else score.n), -score.mean, score.method

    order = sorted(range(len(scores)), key=rank)
    methods = []
    for i in order:
        difference, interval = (None, None) if i == order[0] else lead(i, order[0])
        beaten_by = scores[beaten_by_M[i]].method if beaten_M[i] else None
        doubtful = bool(beaten_M[i] and skewed_M is not None and skewed_M[i] and p_M[i] > SURE)
        methods.append(
            replace(scores[i], difference=difference, interval=interval, beaten_by=beaten_by, doubtful=doubtful)
        )
    pairs, best = [], [i for i in order if not beaten_M[i]]
    for i, j in combinations(best, 2):
        difference, interval = lead(i, j)
        level = interval is not None and max(-interval[0], interval[1]) <= smallest_difference
        place = int(place_MM[i, j])
        needed = (None, None) if level else more(place, LEVEL / max(len(best) - 1, 1))
        n = int(tests.n[place])
        pairs.append(Pair(scores[i].method, scores[j].method, difference, interval, n, level, *needed))
    return Verdict(scope, tuple(methods), tuple(pairs), most, images, smallest_difference, raced=raced)
