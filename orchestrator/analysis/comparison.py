"""The record of one comparison: which methods may be the best, and what is known of those that may.

``best_set`` makes it over datasets, ``one_dataset`` on one dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.settings import SMALLEST_DIFFERENCE
from orchestrator.util.units import pluralize

POWER = 0.8
"""The probability with which the estimated number of further datasets or seeds settles a pair."""
MANY = 100
"""Methods that more datasets or seeds than this would be needed to separate are called nearly equal."""
LARGEST_COUNT = 1000
"""A number of missing datasets or seeds is not estimated beyond this."""

Scope = Literal["datasets", "dataset", "draw"]
"""What a statement is about: datasets like these; this dataset; this dataset with this draw of the support images."""
Outcome = Literal["best", "level", "undecided", "single"]

_SCOPE_TEXTS: Mapping[Scope, str] = {
    "datasets": "",
    "dataset": " on this dataset",
    "draw": " on this dataset with these support images",
}


@dataclass(frozen=True)
class MethodScore:
    """One method of a comparison.

    Attributes:
        mean: mean accuracy in percent over everything the method was measured on.
        n: number of datasets that ``mean`` is over, or of seeds if the comparison is about one dataset.
        seeds: smallest number of seeds on any dataset; 0 if the method does not depend on a seed.
        difference: the method's lead over the first method of the comparison in points, by the estimate that belongs
            to the test; ``None`` for the first method itself and for a method that shares nothing with it.
        interval: 95 % confidence interval of ``difference``; ``None`` if the data are too few for one.
        beaten_by: the method that is better with the smallest p; ``None`` for the methods of the best set.
    """

    method: str
    mean: float
    n: int
    seeds: int
    difference: float | None = None
    interval: tuple[float, float] | None = None
    beaten_by: str | None = None

    @property
    def in_best_set(self) -> bool:
        """Whether the method may be the best one."""
        return self.beaten_by is None


@dataclass(frozen=True)
class Pair:
    """Two methods of the best set.

    Attributes:
        difference: lead of ``first`` over ``second`` in points; ``None`` if they share nothing.
        interval: its 95 % confidence interval; ``None`` if the data are too few for one.
        n: number of datasets (or seeds) that both have.
        level: whether the interval lies within plus or minus the smallest difference that matters.
        more: about how many more datasets (or seeds) would settle an undecided pair with a probability of 80 %, either
            as level or with one method better; ``None`` for a level pair and where there is no estimate.
    """

    first: str
    second: str
    difference: float | None
    interval: tuple[float, float] | None
    n: int
    level: bool
    more: int | None


@dataclass(frozen=True)
class Comparison:
    """Methods that were measured on the same datasets, and which of them may be the best.

    Attributes:
        scope: what the comparison is about. Statements of different scope must not be mixed.
        methods: the best set first, then the others; within both, complete methods first and higher means first.
        pairs: every pair of the best set.
        n: number of datasets, or of seeds if the comparison is about one dataset.
        images: number of test images if the comparison is about one dataset, else ``None``.
        smallest_difference: the smallest difference that matters, in points.
    """

    scope: Scope
    methods: tuple[MethodScore, ...]
    pairs: tuple[Pair, ...]
    n: int
    images: int | None = None
    smallest_difference: float = SMALLEST_DIFFERENCE

    @property
    def best_set(self) -> tuple[str, ...]:
        """The methods that may be the best, at 95 %."""
        return tuple(score.method for score in self.methods if score.in_best_set)

    @property
    def unit(self) -> str:
        """What ``n`` counts: ``dataset`` or ``seed``."""
        return "dataset" if self.scope == "datasets" else "seed"

    @property
    def outcome(self) -> Outcome:
        """``best``: one method is left; ``level``: every pair of the set is level; ``single``: nothing to compare."""
        if len(self.methods) < 2:
            return "single"
        if len(self.best_set) == 1:
            return "best"
        return "level" if all(pair.level for pair in self.pairs) else "undecided"

    @property
    def more(self) -> int | None:
        """About how many more datasets (or seeds) would settle every undecided pair; ``None`` without an estimate."""
        counts = [pair.more for pair in self.pairs if not pair.level]
        known = [count for count in counts if count is not None]
        return max(known) if known and len(known) == len(counts) else None

    def statement(self, display_names: Mapping[str, str] | None = None) -> str:
        """The outcome in a few words, such as ``undecided: lora, bolt; about 6 more datasets would settle it``."""
        shown = display_names or {}
        listed = ", ".join(shown.get(method, method) for method in self.best_set)
        where = _SCOPE_TEXTS[self.scope]
        if self.outcome == "single":
            return f"one method only{where}: {listed}" if listed else f"no method to compare{where}"
        text = f"{self.outcome}{where}: {listed}"
        if self.outcome != "undecided":
            return text
        return f"{text}; {self._what_would_settle()}"

    def _what_would_settle(self) -> str:
        noun = self.unit
        if self.more is not None and self.more <= MANY:
            return f"about {pluralize(self.more, f'more {noun}')} would settle it"
        if self.more is not None:
            return f"some are nearly equal, and more {noun}s will hardly separate them"
        if any(pair.n < 2 for pair in self.pairs):
            return f"too few shared {noun}s to say how many more would settle it"
        return "more seeds alone would not settle it, the test images are too few"
