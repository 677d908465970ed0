"""The verdict on several methods: which may be the best, how sure that is, and which one to use.

``comparison`` makes it from tests of all pairs of methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.analysis import SMALLEST_DIFFERENCE, CostKind
from orchestrator.analysis.costs import Cost, cheapest
from orchestrator.util.units import pluralize

RULE = 5
"""The version of the rule that makes the best set, its order and the recommendation. Verdicts of earlier versions may
name other methods."""
MANY = 100
"""The largest number of further datasets or seeds that a statement names. If more are needed, the statement says that
some differences are small beside their scatter."""

Scope = Literal["datasets", "dataset", "draw"]
"""The subject of a statement: datasets like these, this dataset, or this dataset with this draw of support images."""
Outcome = Literal["best", "level", "undecided", "single"]

_SCOPE_TEXTS: Mapping[Scope, str] = {
    "datasets": "",
    "dataset": " on this dataset",
    "draw": " on this dataset with these support images",
}


@dataclass(frozen=True)
class MethodScore:
    """The score of one method in a verdict.

    Attributes:
        mean: mean accuracy in percent over all datasets or seeds of the method.
        n: number of datasets, or of seeds if the verdict is about one dataset.
        seeds: smallest number of seeds on any dataset; 0 if the method does not depend on a seed.
        difference: the method's lead in points over the first method of the verdict; ``None`` for the first method,
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
        more_seeds: estimated number of further seeds on the same datasets, for a verdict over datasets; ``None`` if
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
class Verdict:
    """Which of several methods may be the best on the same datasets, and which one to use.

    Attributes:
        scope: the subject of the verdict. Statements of different scope must not be mixed.
        methods: the best set, then the excluded methods; in each group first by decreasing n, then by decreasing mean.
            On one dataset, a method without seeds is placed as if it had the largest n.
        pairs: every pair of the best set.
        n: number of datasets, or of seeds if the verdict is about one dataset.
        images: number of test images if the verdict is about one dataset, else ``None``.
        smallest_difference: the smallest difference that matters, in points.
        same_supports: whether a method was adapted once for several of the datasets. The verdict is then true for these
            support images only, because others would change the results on all of these datasets at once.
        raced: whether a race excluded methods, which were then measured on fewer datasets.
        race_goes_on: whether this race still waits for measurements, so that it may exclude more methods.
        k: images per class; 0 on a track without k.
        costs: the costs of one run of each method, medians over its cells; empty if they are unknown.
        saves: the kind of cost that the recommendation compares second, after the need for source models.
    """

    scope: Scope
    methods: tuple[MethodScore, ...]
    pairs: tuple[Pair, ...]
    n: int
    images: int | None = None
    smallest_difference: float = SMALLEST_DIFFERENCE
    same_supports: bool = False
    raced: bool = False
    race_goes_on: bool = False
    k: int = 0
    costs: Mapping[str, Cost] = field(default_factory=dict)
    saves: CostKind = "operations"

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
    def close(self) -> list[str]:
        """The methods of the best set that are close to the best of them.

        A method is close if it is behind the best one by at most the smallest difference that matters. The best one is
        the first method, unless another one leads it that was measured on more than half of the datasets (or seeds). A
        method whose difference is unknown does not count as close.
        """
        leads = {self.methods[0].method: 0.0} if self.methods else {}
        leads |= {s.method: s.difference for s in self.methods[1:] if s.in_best_set and s.difference is not None}
        best = max([0.0, *(leads.get(s.method, 0.0) for s in self.methods if 2 * s.n > self.n)])
        return [method for method, lead in leads.items() if lead >= best - self.smallest_difference]

    @property
    def recommended(self) -> str | None:
        """The cheapest method of the best set that is close to the best one; ``None`` if no method was measured.

        Without :attr:`close`, the cheapest method would win if the data are too few to exclude it.
        """
        return cheapest(self.close, self.costs, self.saves) if self.close else None

    @property
    def loss(self) -> float | None:
        """An upper limit, at 95 %, of the points by which the recommended method is behind the best method.

        Each other method of the best set has a lead over the recommended method, and each lead has an interval. The
        loss is the largest upper end of these intervals. ``None`` if the recommended method is alone in the best set,
        or if the data are too few for an interval.
        """
        pairs = [pair for pair in self.pairs if self.recommended in (pair.first, pair.second)]
        ends = []
        for pair in pairs:
            if pair.interval is None:
                return None
            ends.append(0.0 - pair.interval[0] if pair.first == self.recommended else pair.interval[1])
        return max(0.0, *ends) if ends else None

    def cost(self, method: str) -> Cost:
        """Return the costs of one run of a method."""
        return self.costs.get(method, Cost())

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
        where = _SCOPE_TEXTS[self.scope] + " with these support images" * self.same_supports
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
