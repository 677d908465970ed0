"""Measured accuracies by their position in the paper's tables, and the means that the paper prints."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product

from orchestrator.analysis.comparable import base_protocol
from orchestrator.analysis.rows import Row
from orchestrator.analysis.seed_means import Summary, seed_means, summarize
from orchestrator.core.cell import Cell
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.paper.published import AVERAGE, Position, published_accuracies
from orchestrator.util.grouping import grouped

MEAN_BACKBONE = "mean"
"""What a position has in place of a backbone's name if the paper prints a mean over backbones there."""


class Measured:
    """The accuracies of one protocol, in per cent, by :class:`Position` and seed.

    A changed protocol is this protocol with other values of some switches. Where this protocol plans no cell, the
    results of a changed protocol are used, unless several changed protocols have results there. For example, Flowers102
    has ten images a class, so only a protocol with ``short_classes=take_all`` measures it at 16 shots.

    Attributes:
        labels: (track, domain) -> method label -> method name, in the grid's order. Labels of variants are left out
            (``GridResults.plain``): variants have separate tables.
        fixed: (track, label) of each method that draws nothing at random.
        seeds: the largest number of seeds of any position.
        selects_on_test: whether test labels may have chosen a setting.
    """

    def __init__(self, protocol: str, grid: GridResults) -> None:
        groups = [group for group in grid.groups if not group.ablations]
        own = [group for group in groups if group.place.protocol == protocol]
        changed = [group for group in groups if group.place.protocol.startswith(f"{protocol}+")]
        self.protocol = protocol
        self.labels = _labels([*own, *changed], grid.plain)
        self.fixed = frozenset((group.place.track, method) for group in own for method in group.fixed)
        self._rows: dict[Position, dict[int, Row]] = {}
        for row in chain(*(group.rows for group in own), _substitutes(protocol, grid.planned, changed)):
            backbone, dataset = grid.names_of(row.backbone, row.evaluated_on) if grid.names_of else (None, None)
            if backbone is not None and dataset is not None:
                position = Position(row.track, row.domain, backbone, row.k, row.method, dataset)
                self._rows.setdefault(position, {})[row.seed] = row
        self.seeds = max((len(rows) for rows in self._rows.values()), default=0)
        self.selects_on_test = any(row.selects_on_test for rows in self._rows.values() for row in rows.values())

    def __bool__(self) -> bool:
        return bool(self._rows)

    def rows(self, position: Position) -> Mapping[int, Row]:
        """Return the rows at one position, by seed.

        A method that draws nothing at random has a result for k = 0 only. This result is returned for every k.
        """
        if (position.track, position.method) in self.fixed:
            position = replace(position, shots=0)
        return self._rows.get(position, {})

    def has_substitutes(self, position: Position) -> bool:
        """Return whether a number that :meth:`parts` gives for a position was measured under a changed protocol."""
        rows = (row for part in self.parts(position) for row in self.rows(part).values())
        return any(row.protocol != self.protocol for row in rows)

    def parts(self, position: Position) -> list[Position]:
        """Return the positions of the numbers that ``position`` averages; ``position`` itself if it is no mean."""
        if position.dataset != AVERAGE:
            return [position]
        backbones = paper_backbones() if position.backbone == MEAN_BACKBONE else (position.backbone,)
        datasets = averaged_datasets(position.track, position.domain)
        return [replace(position, backbone=b, dataset=d) for b, d in product(backbones, datasets)]

    def summary(self, position: Position) -> Summary | None:
        """Return the mean and deviation over seeds of the number at a position.

        If the paper prints a mean there, only the seeds that have every number of this mean are used. ``None`` if there
        is no such seed.
        """
        parts = self.parts(position)
        scores = {str(i): {s: r.accuracy for s, r in self.rows(part).items()} for i, part in enumerate(parts)}
        means = seed_means(scores, list(scores))
        return summarize(list(means.values())) if means else None

    def missing_text(self, position: Position) -> str:
        """Return how many parts of a mean are measured, such as ``(3/8)``, for a mean that cannot be computed.

        ``(no whole seed)`` if every part is measured, but no seed has all of them. Empty for a single number, and if no
        part is measured.
        """
        parts = self.parts(position)
        available = sum(bool(self.rows(part)) for part in parts)
        if not available or len(parts) == 1:
            return ""
        return f"({available}/{len(parts)})" if available < len(parts) else "(no whole seed)"


@cache
def paper_backbones() -> tuple[str, ...]:
    """Return the backbones over which the paper averages."""
    return tuple(dict.fromkeys(at.backbone for at in published_accuracies() if at.backbone != MEAN_BACKBONE))


@cache
def averaged_datasets(track: str, domain: str) -> tuple[str, ...]:
    """Return the datasets over which the paper averages on one track and domain."""
    datasets = (at.dataset for at in published_accuracies() if (at.track, at.domain) == (track, domain))
    return tuple(name for name in dict.fromkeys(datasets) if name != AVERAGE)


def measured_protocols(grid: GridResults) -> Iterator[Measured]:
    """Yield the accuracies of each protocol that is not a changed version of another protocol of the grid.

    A protocol is left out if none of its accuracies has a position in the paper's tables.
    """
    protocols = dict.fromkeys(group.place.protocol for group in grid.groups if not group.ablations)
    for protocol in protocols:
        if base_protocol(protocol, protocols) is None and (measured := Measured(protocol, grid)):
            yield measured


def _substitutes(protocol: str, planned: Iterable[Cell], changed: Sequence[ComparisonGroup]) -> Iterator[Row]:
    """Yield the rows of changed protocols for places where ``protocol`` plans no cell.

    A place is a track, backbone, dataset, k and method. If several changed protocols have rows for one place, none of
    these rows is used.
    """
    own = {
        (c.track, c.backbone.name, c.dataset.name, c.shots, c.method.name)
        for c in planned
        if c.protocol.name == protocol
    }
    rows_of_changed = chain(*(group.rows for group in changed))
    candidates = grouped(rows_of_changed, lambda r: (r.track, r.backbone, r.dataset, r.k, r.method_name))
    for key, rows in candidates.items():
        if key not in own and len({row.protocol for row in rows}) == 1:
            yield from rows


def _labels(groups: Sequence[ComparisonGroup], plain: Collection[str]) -> dict[tuple[str, str], dict[str, str]]:
    """Return (track, domain) -> label -> method name, of the ``plain`` labels."""
    labels: dict[tuple[str, str], dict[str, str]] = {}
    for group in groups:
        names = {row.method: row.method_name for row in group.rows}
        own = {method: names[method] for method in group.methods if method in plain}
        labels.setdefault((group.place.track, group.place.domain), {}).update(own)
    return labels
