"""A study: the rows of a grid, arranged so that tables, figures and words ask the same questions of the same numbers.

A :class:`Panel` is what may be compared with each other: one track, protocol, backbone and domain. Inside it, a
method has accuracies per test split, k and seed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from orchestrator.cell import Cell
from orchestrator.report.rows import LabelOf, PublishedOf, Row, SourceRow, labels_of, row_list
from orchestrator.report.statistics import Pair, Scores, Summary, average_ranks, compare, seed_means, summarize
from orchestrator.results import Failure, Result

TRACK_TITLES = {"fewshot": "few-shot", "ood": "out of distribution", "tta": "test-time adaptation"}


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
    """What the rows of a panel share."""

    track: str
    protocol: str
    backbone: str
    domain: str


class Panel:
    """All accuracies of one (track, protocol, backbone, domain), by method, k, test split and seed.

    A method that uses no support has k = 0: it stands at every k of the panel as the same number, see ``fixed``.
    """

    def __init__(self, key: PanelKey, title: str, rows: Sequence[Row], methods: Sequence[str]) -> None:
        self.key, self.title, self.rows = key, title, tuple(rows)
        self.ks: tuple[int, ...] = tuple(sorted({row.k for row in rows} - {0})) or (0,)
        self._rows: dict[tuple[str, int, str], dict[int, Row]] = defaultdict(dict)
        for row in rows:
            self._rows[row.method, row.k, row.test][row.seed] = row
        drawn = {row.method for row in rows if row.k > 0}
        present = {row.method for row in rows}
        self.fixed = frozenset(present - drawn) if self.ks != (0,) else frozenset()
        order = [m for m in methods if m in present]
        self.methods: tuple[str, ...] = tuple(sorted(order, key=lambda m: m not in self.fixed))
        self.seeds: tuple[int, ...] = tuple(sorted({row.seed for row in rows if row.method not in self.fixed}))
        self._compared: dict[int, list[Pair]] = {}

    def seed_rows(self, method: str, k: int, test: str) -> Mapping[int, Row]:
        """The rows of one method on one test split, by seed; a fixed method's are the same at every k."""
        return self._rows.get((method, 0 if method in self.fixed else k, test), {})

    def tests(self, k: int, *, averaged: bool = False) -> tuple[str, ...]:
        """The test splits with any result at ``k`` (of a method that uses support, if there are any), sorted."""
        rows = [row for row in self.rows if row.k == k and (row.averaged or not averaged)]
        return tuple(sorted({row.test for row in rows or self.rows}, key=str.casefold))

    def score(self, method: str, k: int, test: str) -> Summary | None:
        """Accuracy over seeds on one test split."""
        rows = self.seed_rows(method, k, test)
        return summarize([row.accuracy for row in rows.values()]) if rows else None

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

    def ranks(self, k: int) -> tuple[dict[str, float], int]:
        """Average rank over the test splits that every ranked method has, and how many those are."""
        methods = [method for method, _ in self.ranking(k)]
        scores: dict[str, list[float]] = {method: [] for method in methods}
        count = 0
        for test in self.tests(k, averaged=True):
            summaries = [self.score(method, k, test) for method in methods]
            if all(summaries):
                count += 1
                for method, summary in zip(methods, summaries, strict=True):
                    if summary is not None:
                        scores[method].append(summary.mean)
        return average_ranks(scores), count

    def pairs(self, k: int) -> list[Pair]:
        """Every pair of methods at ``k``, over the averaged test splits."""
        if k not in self._compared:
            tests = self.tests(k, averaged=True)
            scores = {}
            for method in self.methods:
                by_test = {test: self.seed_rows(method, k, test) for test in tests}
                accuracies = {t: {s: row.accuracy for s, row in rows.items()} for t, rows in by_test.items() if rows}
                scores[method] = Scores(accuracies, fixed=method in self.fixed)
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


@dataclass(frozen=True)
class Study:
    """Everything a report is written from.

    Attributes:
        methods: labels in the order of the plan; ``method_names`` gives each its identifier.
        labels: the label of every planned or measured cell by id.
        missing: planned cells that have neither a result nor a failure.
    """

    results: tuple[Result, ...]
    failures: tuple[Failure, ...]
    planned: tuple[Cell, ...]
    sources: tuple[SourceRow, ...]
    rows: tuple[Row, ...]
    labels: Mapping[str, str]
    methods: tuple[str, ...]
    method_names: Mapping[str, str]
    panels: tuple[Panel, ...]
    missing: tuple[Cell, ...]

    @property
    def tracks(self) -> tuple[str, ...]:
        """The tracks that have results, in the order of the plan."""
        return _unique(panel.key.track for panel in self.panels)


def study_of(
    *,
    results: Sequence[Result],
    failures: Sequence[Failure],
    planned: Sequence[Cell],
    label_of: LabelOf,
    published_of: PublishedOf | None = None,
    sources: Sequence[SourceRow] = (),
) -> Study:
    """Arrange results (each cell's last one counts), failures and the plan."""
    by_id = {result.cell.id: result for result in results}
    cells = {cell.id: cell for cell in (*planned, *(result.cell for result in by_id.values()))}
    labels = labels_of(cells.values(), label_of)
    rows = row_list(list(by_id.values()), labels, published_of)
    failed = {failure.id for failure in failures}
    methods = _unique(labels[id_] for id_ in cells)
    return Study(
        results=tuple(by_id.values()),
        failures=tuple(failures),
        planned=tuple(planned),
        sources=tuple(sources),
        rows=tuple(rows),
        labels=labels,
        methods=methods,
        method_names={labels[id_]: cell.method.name for id_, cell in cells.items()},
        panels=_panels(rows, cells.values(), methods),
        missing=tuple(cell for cell in planned if cell.id not in by_id and cell.id not in failed),
    )


def _panels(rows: Sequence[Row], cells: Iterable[Cell], methods: Sequence[str]) -> tuple[Panel, ...]:
    """The panels that have rows, in the order of the plan, titled by what tells them apart."""
    by_key: dict[PanelKey, list[Row]] = {}
    for cell in cells:
        by_key.setdefault(PanelKey(cell.track, cell.protocol.name, cell.backbone.name, cell.domain), [])
    for row in rows:
        by_key[PanelKey(row.track, row.protocol, row.backbone, row.domain)].append(row)
    keys = [key for key, own in by_key.items() if own]
    several = {name: len({getattr(key, name) for key in keys}) > 1 for name in ("track", "protocol", "backbone")}

    def title(key: PanelKey) -> str:
        words = [key.domain.replace("_", " ")]
        if several["backbone"]:
            words.append(key.backbone)
        if several["track"]:
            words.append(TRACK_TITLES.get(key.track, key.track))
        if several["protocol"]:
            words.append(key.protocol)
        return " · ".join(words)

    return tuple(Panel(key, title(key), by_key[key], methods) for key in keys)


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
