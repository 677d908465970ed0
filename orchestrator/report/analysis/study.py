"""A study: the rows of a grid, arranged so that tables, figures and words ask the same of the same numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import TRACK_TITLES, Panel, PanelKey
from orchestrator.report.analysis.rows import LabelOf, NamesOf, PublishedOf, Row, SourceRow, labels_of, row_list
from orchestrator.report.text import SELECTED
from orchestrator.store.results import Failure, Result


@dataclass(frozen=True)
class Study:
    """Everything a report is written from.

    Attributes:
        methods: labels in the order of the plan; ``method_names`` gives each its identifier.
        labels: the label of every planned or measured cell by id.
        missing: planned cells that have neither a result nor a failure.
        curves: of cells on the ``meta`` track by id, the accuracy on the target's test split after each epoch.
        names_of: the paper's names of backbones and datasets; ``None`` leaves its tables out.
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
    curves: Mapping[str, tuple[float, ...]]
    names_of: NamesOf | None = None

    @property
    def leading(self) -> tuple[Panel, ...]:
        """The panels of whole protocols; those of single switches only say what a switch does, see ``effects``."""
        return tuple(panel for panel in self.panels if not panel.of_switch)

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
    names_of: NamesOf | None = None,
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
        panels=_panels(rows, cells.values(), methods, _ablations(cells.values(), labels)),
        missing=tuple(cell for cell in planned if cell.id not in by_id and cell.id not in failed),
        curves={
            id_: tuple(result.curves["accuracy"])
            for id_, result in by_id.items()
            if result.cell.track == "meta" and "accuracy" in result.curves
        },
        names_of=names_of,
    )


def _ablations(cells: Iterable[Cell], labels: Mapping[str, str]) -> dict[tuple[PanelKey, str], str]:
    """Labels that are planned on fewer of a panel's datasets than another label of the same method, and that method."""
    datasets: dict[tuple[PanelKey, str], dict[str, set[str]]] = {}
    for cell in cells:
        key = PanelKey(cell.track, cell.protocol.name, cell.backbone.name, cell.domain)
        datasets.setdefault((key, cell.method.name), {}).setdefault(labels[cell.id], set()).add(cell.dataset.name)
    return {
        (key, label): name
        for (key, name), of_labels in datasets.items()
        for label, own in of_labels.items()
        if any(own < other for other in of_labels.values())
    }


def _panels(
    rows: Sequence[Row], cells: Iterable[Cell], methods: Sequence[str], ablations: Mapping[tuple[PanelKey, str], str]
) -> tuple[Panel, ...]:
    """The panels that have rows, in the order of the plan, titled by what tells them apart.

    Ablations stand in a panel of their own beside their method as it is, on the same datasets, k and seeds: in a mean
    over all datasets they would only be gaps.
    """
    by_key: dict[PanelKey, list[Row]] = {}
    for cell in cells:
        by_key.setdefault(PanelKey(cell.track, cell.protocol.name, cell.backbone.name, cell.domain), [])
    covered: dict[PanelKey, set[tuple[str, str, int, int]]] = {}
    for row in rows:
        key = PanelKey(row.track, row.protocol, row.backbone, row.domain)
        if (key, row.method) in ablations:
            own = replace(key, ablations=True)
            by_key.setdefault(own, []).append(row)
            covered.setdefault(own, set()).add((row.method_name, row.test, row.k, row.seed))
        else:
            by_key[key].append(row)
    for own, places in covered.items():
        whole = by_key[replace(own, ablations=False)]
        by_key[own] += [row for row in whole if (row.method_name, row.test, row.k, row.seed) in places]
    keys = [key for key, own in by_key.items() if own]
    tracks = list(TRACK_TITLES)
    keys.sort(key=lambda key: tracks.index(key.track) if key.track in tracks else len(tracks))
    protocols = {key.protocol for key in keys}
    several = {name: len({getattr(key, name) for key in keys}) > 1 for name in ("track", "protocol", "backbone")}

    def title(key: PanelKey) -> str:
        words = [key.domain.replace("_", " ")]
        if several["backbone"]:
            words.append(key.backbone)
        if several["track"] or key.track != "fewshot":
            words.append(TRACK_TITLES.get(key.track, key.track))
        if several["protocol"] or key.protocol != "strict":
            words.append(key.protocol)
        if key.ablations:
            words.append("ablations")
        if any(row.selects_on_test for row in by_key[key]):
            words[-1] += f" {SELECTED}"
        return " · ".join(words)

    return tuple(
        Panel(key, title(key), by_key[key], methods, of_switch=base_protocol(key.protocol, protocols) is not None)
        for key in keys
    )


def base_protocol(name: str, present: Iterable[str]) -> str | None:
    """The protocol that ``name`` is a change of, of those present: ``strict`` for ``strict+sigma_sign=relu``.

    The nearest one, where changes were made to a changed protocol.
    """
    known = set(present)
    while "+" in name:
        name = name.rpartition("+")[0]
        if name in known:
            return name
    return None


def _unique(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(values))
