"""What was measured, by the places of the paper's tables: its names of backbones and datasets, and its means."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import product

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.rows import NamesOf, Row
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.analysis.study import Study, base_protocol
from orchestrator.report.paper.published import AVERAGE, published_rows

MEAN_BACKBONE = "mean"
"""The backbone of the paper's means over backbones."""


@dataclass(frozen=True)
class Spot:
    """One place of the paper's tables; ``shots`` is 0 on the test-time track, ``method`` a label of the report."""

    track: str
    domain: str
    backbone: str
    shots: int
    method: str
    dataset: str


class Measured:
    """The accuracies of one protocol, in per cent, by :class:`Spot` and seed.

    Where the protocol has no cell planned, that of a changed one stands in if there is just one: at 16 shots the
    ten images a class of Flowers102 are only measured under ``short_classes=take_all``. ``borrowed`` says where.

    Attributes:
        methods: by track and domain, labels and their methods' names, in the study's order. Of a method with several
            labels only the one that is its name, if there is one: variants have tables of their own.
        fixed: track and label of methods that draw nothing.
        selects_on_test: whether test labels may have chosen anything.
    """

    def __init__(self, protocol: str, rows: Iterable[Row], methods: Mapping[tuple[str, str], Mapping[str, str]],
                 fixed: frozenset[tuple[str, str]], names_of: NamesOf, borrowed: frozenset[str]) -> None:  # fmt: skip
        self.protocol, self.methods, self.borrowed_cells = protocol, methods, borrowed
        self.fixed = fixed
        self._summaries: dict[Spot, Summary | None] = {}
        self._rows: dict[Spot, dict[int, Row]] = {}
        self.selects_on_test = False
        for row in rows:
            backbone, dataset = names_of(row.backbone, row.evaluated_on)
            if backbone is not None and dataset is not None:
                spot = Spot(row.track, row.domain, backbone, row.k, row.method, dataset)
                self._rows.setdefault(spot, {})[row.seed] = row
                self.selects_on_test = self.selects_on_test or row.selects_on_test

    def __bool__(self) -> bool:
        return bool(self._rows)

    @cached_property
    def seeds(self) -> int:
        """The most seeds that any place has."""
        return max((len(rows) for rows in self._rows.values()), default=0)

    @cached_property
    def places(self) -> frozenset[tuple[str, str]]:
        """The tracks and domains that anything is measured on."""
        return frozenset((spot.track, spot.domain) for spot in self._rows)

    def rows(self, spot: Spot) -> Mapping[int, Row]:
        """The rows at one place, by seed; a method that draws nothing has the same at every k."""
        if (spot.track, spot.method) in self.fixed:
            spot = replace(spot, shots=0)
        return self._rows.get(spot, {})

    def borrowed(self, spot: Spot) -> bool:
        """Whether a number, or a part of a mean, comes from a changed protocol."""
        rows = (row for part in self.parts(spot) for row in self.rows(part).values())
        return bool(self.borrowed_cells) and any(row.cell_id in self.borrowed_cells for row in rows)

    def parts(self, spot: Spot) -> list[Spot]:
        """The places that a mean of the paper is over; the place itself where it is none."""
        if spot.dataset != AVERAGE:
            return [spot]
        if (spot.track, spot.method) in self.fixed:
            spot = replace(spot, shots=0)
        backbones = paper_backbones() if spot.backbone == MEAN_BACKBONE else (spot.backbone,)
        datasets = averaged_datasets(spot.track, spot.domain)
        return [replace(spot, backbone=b, dataset=d) for b, d in product(backbones, datasets)]

    def summary(self, spot: Spot) -> Summary | None:
        """Over seeds; of a mean, for each seed that has every part of it. ``None`` where there is no such seed."""
        if spot not in self._summaries:
            self._summaries[spot] = self._summary(spot)
        return self._summaries[spot]

    def _summary(self, spot: Spot) -> Summary | None:
        parts = self.parts(spot)
        if len(parts) == 1:
            rows = self.rows(spot).values()
            return summarize([row.accuracy for row in rows]) if rows else None
        scores = {str(i): {s: r.accuracy for s, r in self.rows(part).items()} for i, part in enumerate(parts)}
        means = seed_means(scores, list(scores))
        return summarize(list(means.values())) if means else None

    def lacking(self, spot: Spot) -> str:
        """How much of a mean there is, in words; empty where there is nothing, or no mean."""
        parts = self.parts(spot)
        have = sum(bool(self.rows(part)) for part in parts)
        if not have or len(parts) == 1:
            return ""
        return f"({have}/{len(parts)})" if have < len(parts) else "(no whole seed)"


@cache
def paper_backbones() -> tuple[str, ...]:
    """The backbones that the paper's means are over."""
    return tuple(dict.fromkeys(row.backbone for row in published_rows() if row.backbone != MEAN_BACKBONE))


@cache
def averaged_datasets(track: str, domain: str) -> tuple[str, ...]:
    """The datasets that the paper's means of a track and domain are over."""
    found = (row.dataset for row in published_rows() if (row.track, row.domain) == (track, domain))
    return tuple(name for name in dict.fromkeys(found) if name != AVERAGE)


def measured_of(study: Study) -> Iterator[Measured]:
    """One for each protocol that is no change of another one of the study, if it has a place in the paper's tables."""
    if study.names_of is None:
        return
    panels = [panel for panel in study.panels if not panel.key.ablations]
    protocols = list(dict.fromkeys(panel.key.protocol for panel in panels))
    for name in protocols:
        if base_protocol(name, protocols) is None:
            own = [panel for panel in panels if panel.key.protocol == name]
            changed = [p for p in panels if p.key.protocol != name and _root(p.key.protocol, protocols) == name]
            rows = [row for panel in own for row in panel.rows]
            more = list(_standing_in(name, study.planned, changed))
            methods = _methods([*own, *changed])
            fixed = frozenset((panel.key.track, method) for panel in own for method in panel.fixed)
            found = Measured(name, [*rows, *more], methods, fixed, study.names_of, frozenset(r.cell_id for r in more))
            if found:
                yield found


def _root(protocol: str, present: Sequence[str]) -> str:
    while (base := base_protocol(protocol, present)) is not None:
        protocol = base
    return protocol


def _standing_in(protocol: str, planned: Iterable[Cell], changed: Sequence[Panel]) -> Iterator[Row]:
    """Rows of changed protocols where ``protocol`` has no cell planned and only one of the others has any."""
    taken = {(c.track, c.backbone.name, c.dataset.name, c.shots, c.method.name) for c in planned
             if c.protocol.name == protocol}  # fmt: skip
    offers: dict[tuple[str, str, str, int, str], list[Row]] = {}
    for panel in changed:
        for row in panel.rows:
            offers.setdefault((row.track, row.backbone, row.dataset, row.k, row.method_name), []).append(row)
    for place, rows in offers.items():
        if place not in taken and len({row.protocol for row in rows}) == 1:
            yield from rows


def _methods(panels: Sequence[Panel]) -> dict[tuple[str, str], dict[str, str]]:
    found: dict[tuple[str, str], dict[str, str]] = {}
    for panel in panels:
        names = {row.method: row.method_name for row in panel.rows}
        found.setdefault((panel.key.track, panel.key.domain), {}).update({m: names[m] for m in panel.methods})
    return {
        place: {label: name for label, name in own.items() if label == name or name not in own}
        for place, own in found.items()
    }
