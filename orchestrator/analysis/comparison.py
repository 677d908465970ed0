"""Makes a comparison from tests of all pairs of methods. It names the methods that may be the best: the best set.

A method leaves the best set if another method of the set is significantly better. The remaining methods are then
tested again among themselves, until none leaves. So the truly best method leaves only if one of these tests is wrong,
and it stays with a probability of 95 % (docs/verdict.md has the simulations). The procedure is a stepwise comparison
with the best (Hsu, Annals of Statistics 12, 1984). A single test of the observed winner against all other methods would
not guarantee this probability.

``best_set`` makes the tests over datasets, ``one_dataset`` on one dataset.

Shape legend: M methods, P pairs of methods. An entry (i, j) of a matrix (M, M) compares method i with method j.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from orchestrator.analysis import SMALLEST_DIFFERENCE
from orchestrator.analysis.paired_tests import Floats, Ints, PairedTests
from orchestrator.util.units import pluralize

LEVEL = 0.045
"""The p-value up to which a method is excluded. It is below 0.05 because each step of :func:`eliminate` may exclude the
truly best method. Over all steps, the best set misses this method in at most 5 % of cases."""
SURE = 0.005
"""An exclusion at this p-value or a smaller one is wrong in at most 5 % of cases, even if the rivals of the excluded
method are usually a little better and at times much worse."""
RULE = 3
"""The version of the rule that makes the best set, its order and the recommendation. Verdicts of earlier versions may
name other methods."""
MANY = 100
"""The largest number of further datasets or seeds that a statement names. If more are needed, the statement says that
some differences are small beside their scatter."""

Scope = Literal["datasets", "dataset", "draw"]
"""The subject of a statement: datasets like these, this dataset, or this dataset with this draw of support images."""
Outcome = Literal["best", "level", "undecided", "single"]

Test = Callable[[Ints], tuple[Floats, Ints]]
"""Maps the positions of the remaining methods to the p-value and the strongest rival of each."""

_SCOPE_TEXTS: Mapping[Scope, str] = {
    "datasets": "",
    "dataset": " on this dataset",
    "draw": " on this dataset with these support images",
}


@dataclass(frozen=True)
class MethodScore:
    """One method of a comparison.

    Attributes:
        mean: mean accuracy in percent over all datasets or seeds of the method.
        n: number of datasets, or of seeds if the comparison is about one dataset.
        seeds: smallest number of seeds on any dataset; 0 if the method does not depend on a seed.
        difference: the method's lead in points over the first method of the comparison; ``None`` for the first method,
            and for a method that shares no dataset or seed with the first method.
        interval: 95 % confidence interval of ``difference``; ``None`` if the data are too few.
        beaten_by: the strongest rival of an excluded method, in the test that excludes it; ``None`` for a method that
            may be the best.
        doubtful: whether the method is excluded by a narrow margin and the leads of its rivals are skewed. Rivals may
            then fail badly on rare datasets, and the exclusion is wrong more often than in 5 % of cases.
    """

    method: str
    mean: float
    n: int
    seeds: int
    difference: float | None = None
    interval: tuple[float, float] | None = None
    beaten_by: str | None = None
    doubtful: bool = False

    @property
    def in_best_set(self) -> bool:
        """Whether the method may be the best."""
        return self.beaten_by is None


@dataclass(frozen=True)
class Pair:
    """Two methods of the best set.

    Attributes:
        difference: lead of ``first`` over ``second`` in points; ``None`` without a shared dataset or seed.
        interval: 95 % confidence interval of the difference; ``None`` if the data are too few.
        n: number of datasets (or seeds) that both methods have.
        level: whether the interval lies within plus or minus the smallest difference that matters.
        more: estimated number of further datasets (or seeds) after which the pair is settled with a probability of
            80 %: it is level, or one method is better. ``None`` for a level pair, and if there is no estimate.
        more_seeds: estimated number of further seeds on the same datasets, for a comparison over datasets; ``None`` if
            differences scatter more between datasets than between seeds, or if seeds cannot settle the pair.
    """

    first: str
    second: str
    difference: float | None
    interval: tuple[float, float] | None
    n: int
    level: bool
    more: int | None
    more_seeds: int | None = None


@dataclass(frozen=True)
class Comparison:
    """The comparison of methods that were measured on the same datasets, with the best set.

    Attributes:
        scope: the subject of the comparison. Statements of different scope must not be mixed.
        methods: the best set, then the excluded methods; in each group first by decreasing n, then by decreasing mean.
            On one dataset, a method without seeds is placed as if it had the largest n.
        pairs: every pair of the best set.
        n: number of datasets, or of seeds if the comparison is about one dataset.
        images: number of test images if the comparison is about one dataset, else ``None``.
        smallest_difference: the smallest difference that matters, in points.
        raced: whether a race excluded methods, which were then measured on fewer datasets.
        race_goes_on: whether this race still waits for measurements, so that it may exclude more methods.
    """

    scope: Scope
    methods: tuple[MethodScore, ...]
    pairs: tuple[Pair, ...]
    n: int
    images: int | None = None
    smallest_difference: float = SMALLEST_DIFFERENCE
    raced: bool = False
    race_goes_on: bool = False

    @property
    def best_set(self) -> tuple[str, ...]:
        """The methods that may be the best, at 95 %."""
        return tuple(score.method for score in self.methods if score.in_best_set)

    @property
    def unit(self) -> str:
        """The unit of ``n``: ``dataset`` or ``seed``."""
        return "dataset" if self.scope == "datasets" else "seed"

    @property
    def outcome(self) -> Outcome:
        """The outcome in one word.

        ``single``: fewer than two methods were measured. ``best``: the best set has one method. ``level``: every pair
        of the best set is level. ``undecided``: any other case.
        """
        if len(self.methods) < 2:
            return "single"
        if len(self.best_set) == 1:
            return "best"
        return "level" if all(pair.level for pair in self.pairs) else "undecided"

    @property
    def more(self) -> int | None:
        """The estimated number of further datasets (or seeds) that decide the best method; ``None`` if unknown."""
        return _largest([pair.more for pair in self._open_pairs])

    @property
    def more_seeds(self) -> int | None:
        """The estimated number of further seeds that every dataset needs until the best method is decided.

        ``None`` if the number is unknown or larger than :data:`MANY`.
        """
        count = _largest([pair.more_seeds for pair in self._open_pairs])
        return count if count is not None and count <= MANY else None

    @property
    def _open_pairs(self) -> list[Pair]:
        """The pairs that must be settled before the best method is known: the first method's pairs that are not level.

        If the first method is level with all others of the best set, every other pair that is not level counts.
        """
        pairs = [pair for pair in self.pairs if not pair.level]
        return [pair for pair in pairs if pair.first == self.methods[0].method] or pairs

    def statement(self, display_names: Mapping[str, str] | None = None) -> str:
        """Return the outcome in a few words.

        For example ``undecided: lora, bolt; about 6 more datasets would settle it``.
        """
        shown = display_names or {}
        listed = ", ".join(shown.get(method, method) for method in self.best_set)
        where = _SCOPE_TEXTS[self.scope]
        if self.outcome == "single":
            return f"one method only{where}: {listed}" if listed else f"no method to compare{where}"
        if self.raced:
            where = f"{where}, by a race" + " that is not over" * self.race_goes_on
        text = f"{self.outcome}{where}: {listed}"
        if self.outcome == "undecided":
            text = f"{text}; {self._what_would_settle()}"
        if doubtful := [shown.get(score.method, score.method) for score in self.methods if score.doubtful]:
            out = f"{', '.join(doubtful)} {'is' if len(doubtful) == 1 else 'are'} out"
            text = f"{text}; it is less sure than 95 % that {out}, because differences are skewed"
        return text

    def _what_would_settle(self) -> str:
        noun = self.unit
        if self.more_seeds is not None:
            return f"about {pluralize(self.more_seeds, 'more seed')} on each dataset would settle it"
        if self.more is not None and self.more <= MANY:
            alike = " like these" * (self.scope == "datasets")
            return f"about {pluralize(self.more, f'more {noun}')}{alike} would settle it"
        if self.more is not None:
            return f"some differences are small beside their scatter, and more {noun}s will hardly settle them"
        if any(pair.n < 2 for pair in self.pairs):
            shared = "datasets shared under the same seeds" if self.scope == "datasets" else "shared seeds"
            return f"too few {shared} to say how many more would settle it"
        return "more seeds alone would not settle it, because the test images are too few"


def _largest(counts: Sequence[int | None]) -> int | None:
    """Return the largest of the counts; ``None`` if one is unknown."""
    known = [count for count in counts if count is not None]
    return max(known) if known and len(known) == len(counts) else None


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


def make_comparison(
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
) -> Comparison:
    """Return the comparison that results from tests of all pairs.

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
    return Comparison(scope, tuple(methods), tuple(pairs), most, images, smallest_difference, raced)
