"""A panel: what may be compared with each other - one track, protocol, backbone and domain.

Inside it, a method has accuracies per test split, k and seed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from bolt.methods import METHODS
from orchestrator.report.analysis.rows import Row
from orchestrator.report.analysis.statistics import Pair, Scores, Summary, average_ranks, compare, seed_means, summarize

TRACK_TITLES = {
    "fewshot": "few-shot",
    "ood": "out of distribution",
    "tta": "test-time adaptation",
    "meta": "meta-learned start",
}


@dataclass(frozen=True)
class DomainMean:
    """A method's mean over the datasets of a panel at one k.

    Attributes:
        accuracy, gain: over the seeds that have every dataset; ``None`` if no seed has.
        have, of: test splits with any result, and test splits that are averaged.
    """

    accuracy: Summary | None
    gain: Summary | None
    have: int
    of: int


@dataclass(frozen=True)
class PanelKey:
    """What its rows share; ``ablations`` of some methods on some of the datasets have a panel of their own."""

    track: str
    protocol: str
    backbone: str
    domain: str
    ablations: bool = False


class Panel:
    """All accuracies of one (track, protocol, backbone, domain), by method, k, test split and seed.

    A method that draws nothing has k = 0 and seed 0: it stands at every k of the panel as the same number, see
    ``fixed``. On the test-time track every cell has k = 0; the methods that adapt have seeds.

    ``repeatable`` are the methods that another seed could change: where nothing in the panel has seeds, only the
    methods themselves know.
    """

    def __init__(
        self, key: PanelKey, title: str, rows: Sequence[Row], methods: Sequence[str], *, of_switch: bool = False
    ) -> None:
        self.key, self.title, self.rows, self.of_switch = key, title, tuple(rows), of_switch
        self.ks: tuple[int, ...] = tuple(sorted({row.k for row in rows} - {0})) or (0,)
        self._rows: dict[tuple[str, int, str], dict[int, Row]] = defaultdict(dict)
        for row in rows:
            self._rows[row.method, row.k, row.test][row.seed] = row
        drawn = {row.method for row in rows if row.k > 0 or row.seed > 0}
        present = {row.method for row in rows}
        self.fixed = frozenset(present - drawn) if drawn else frozenset()
        order = [m for m in methods if m in present]
        self.methods: tuple[str, ...] = tuple(sorted(order, key=lambda m: m not in self.fixed))
        self.seeds: tuple[int, ...] = tuple(sorted({row.seed for row in rows if row.method not in self.fixed}))
        silent = {name for name, method in METHODS.items() if not method.uses_support}
        self.repeatable = frozenset({row.method for row in rows if row.method_name not in silent} - self.fixed)
        self.selects_on_test = any(row.selects_on_test for row in rows)
        self._compared: dict[int, list[Pair]] = {}
        self._ranked: dict[int, tuple[dict[str, float], int]] = {}
        self._tests: dict[tuple[int, bool], tuple[str, ...]] = {}

    def seed_rows(self, method: str, k: int, test: str) -> Mapping[int, Row]:
        """The rows of one method on one test split, by seed; a fixed method's are the same at every k."""
        return self._rows.get((method, 0 if method in self.fixed else k, test), {})

    def tests(self, k: int, *, averaged: bool = False) -> tuple[str, ...]:
        """The test splits with any result at ``k`` (of a method that uses support, if there are any), sorted."""
        if (k, averaged) not in self._tests:
            rows = [row for row in self.rows if row.k == k and (row.averaged or not averaged)]
            self._tests[k, averaged] = tuple(sorted({row.test for row in rows or self.rows}, key=str.casefold))
        return self._tests[k, averaged]

    def score(self, method: str, k: int, test: str) -> Summary | None:
        """Accuracy over seeds on one test split."""
        rows = self.seed_rows(method, k, test)
        return summarize([row.accuracy for row in rows.values()]) if rows else None

    @cached_property
    def uneven(self) -> tuple[str, ...]:
        """Methods scored on another number of images than most: some protocols hold images out for some methods."""
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for row in self.rows:
            counts[row.test][row.total] += 1
        usual = {test: count.most_common(1)[0][0] for test, count in counts.items()}
        odd = {row.method for row in self.rows if row.total != usual[row.test]}
        return tuple(method for method in self.methods if method in odd)

    def own_classes(self, method: str, k: int, test: str) -> Summary | None:
        """Accuracy over seeds among the classes of the test split alone; ``None`` where a seed lacks it."""
        found = [row.accuracy_own_classes for row in self.seed_rows(method, k, test).values()]
        known = [value for value in found if value is not None]
        return summarize(known) if known and len(known) == len(found) else None

    def zero_shot(self, k: int, test: str) -> float | None:
        """The frozen backbone's accuracy on one test split, as any method's evaluation carries it."""
        for method in self.methods:
            for row in self.seed_rows(method, k, test).values():
                return row.accuracy_zero_shot
        return None

    def mean(self, method: str, k: int) -> DomainMean:
        """For each seed the mean over the averaged test splits, then mean and deviation over seeds."""
        return self._means[method, k]

    @cached_property
    def _means(self) -> dict[tuple[str, int], DomainMean]:
        means = {}
        for k in self.ks:
            tests = self.tests(k, averaged=True)
            for method in self.methods:
                rows = {test: self.seed_rows(method, k, test) for test in tests}
                accuracies = seed_means({t: {s: r.accuracy for s, r in rows[t].items()} for t in tests}, tests)
                gains = seed_means({t: {s: r.gain for s, r in rows[t].items()} for t in tests}, tests)
                means[method, k] = DomainMean(
                    accuracy=summarize(list(accuracies.values())) if accuracies else None,
                    gain=summarize(list(gains.values())) if gains else None,
                    have=sum(bool(rows[test]) for test in tests),
                    of=len(tests),
                )
        return means

    def ranking(self, k: int) -> list[tuple[str, Summary]]:
        """Methods with a complete mean at ``k``, best first; equal means in the panel's order."""
        means = [(method, self.mean(method, k).accuracy) for method in self.methods]
        return sorted(((m, s) for m, s in means if s is not None), key=lambda item: -round(item[1].mean, 9))

    def common_scores(self, k: int) -> tuple[dict[str, list[float]], int]:
        """Means over seeds of every ranked method on the test splits that all of them have, best method first.

        With them the seeds that each is over, the least; 0 where no method draws anything.
        """
        methods = [method for method, _ in self.ranking(k)]
        scores: dict[str, list[float]] = {method: [] for method in methods}
        seeds: list[int] = []
        for test in self.tests(k, averaged=True):
            summaries = [summary for method in methods if (summary := self.score(method, k, test)) is not None]
            if len(summaries) == len(methods):
                for method, summary in zip(methods, summaries, strict=True):
                    scores[method].append(summary.mean)
                    seeds += [summary.n] if method in self.repeatable else []
        return scores, min(seeds, default=0)

    def ranks(self, k: int) -> tuple[dict[str, float], int]:
        """Average rank over the test splits that every ranked method has, and how many those are."""
        if k not in self._ranked:
            scores, _ = self.common_scores(k)
            self._ranked[k] = average_ranks(scores), len(next(iter(scores.values()), ()))
        return self._ranked[k]

    def pairs(self, k: int) -> list[Pair]:
        """Every pair of methods at ``k``, over the averaged test splits."""
        if k not in self._compared:
            tests = self.tests(k, averaged=True)
            scores = {}
            for method in self.methods:
                by_test = {test: self.seed_rows(method, k, test) for test in tests}
                accuracies = {t: {s: row.accuracy for s, row in rows.items()} for t, rows in by_test.items() if rows}
                scores[method] = Scores(accuracies, fixed=method not in self.repeatable)
            self._compared[k] = compare(scores)
        return self._compared[k]

    def pair(self, k: int, first: str, second: str) -> Pair | None:
        """The pair of two methods, seen from ``first``."""
        for pair in self.pairs(k):
            if (pair.first, pair.second) == (first, second):
                return pair
            if (pair.first, pair.second) == (second, first):
                return pair.turned()
        return None
