"""What a grid lacks: classes with too few images, and cells without a result."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.study import Study
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Entry, Table, number, with_dagger
from orchestrator.util.units import listed

_LISTED = 8
"""How many cells a row of the table of missing cells names."""


def short_classes_table(study: Study) -> Table | None:
    """Datasets that have classes with fewer than k training images, by k and protocol; ``None`` if there are none."""
    groups = {(row.dataset, row.domain, row.k, row.protocol): row for row in study.rows if row.short_classes}
    if not groups:
        return None
    rows = []
    for (dataset, domain, k, protocol), row in sorted(groups.items()):
        counts = (number(count, "d") for count in (k, row.short_classes, row.classes))
        rows.append(with_dagger((Entry(dataset), Entry(domain), Entry(protocol), *counts), row.selects_on_test))
    title = "Classes with fewer than k images"
    note = "Classes with fewer than k training images. The protocol takes all images that such a class has."
    header = ("dataset", "domain", "protocol", "k", "short classes", "classes")
    return Table("short_classes", title, note, header, tuple(rows), text_columns=3)


def missing_table(study: Study) -> Table | None:
    """Planned, finished, failed and missing cells of every method and k that is not complete; ``None`` if all are."""
    if not (study.missing or study.failures):
        return None
    finished = {result.cell.id for result in study.results}
    failed = {failure.id for failure in study.failures}
    groups: dict[tuple[str, str, str, str, str, int], list[Cell]] = defaultdict(list)
    for cell in study.planned:
        key = (study.labels[cell.id], cell.track, cell.protocol.name, cell.domain, cell.backbone.name, cell.shots)
        groups[key].append(cell)
    rows = []
    for (*texts, k), cells in groups.items():
        unfinished = [cell for cell in cells if cell.id not in finished]
        if unfinished:
            failures = sum(cell.id in failed for cell in unfinished)
            counts = (k, len(cells), len(cells) - len(unfinished), failures, len(unfinished) - failures)
            names = [f"{c.dataset.name} seed {c.seed}" if c.shots or c.seed else c.dataset.name for c in unfinished]
            place = (method_entry(study, texts[0]), *map(Entry, texts[1:]))
            rows.append((*place, Entry(listed(names, _LISTED)), *(number(count, "d") for count in counts)))
    note = "Only what is not complete is listed; every cell that lacks a result is in tables/cells_without_result.csv."
    titles = ("method", "track", "protocol", "domain", "backbone", "which")
    header = (*titles, "k", "planned", "finished", "failed", "missing")
    table = Table("missing", "Cells without a result", note, header, tuple(rows), text_columns=len(titles))
    return table.without_constant_columns(2, 3)


def cells_without_result_table(study: Study) -> Table | None:
    """Every planned cell without a result and every failure, one row each; ``None`` if there are none."""
    if not (study.missing or study.failures):
        return None
    finished = {result.cell.id for result in study.results}
    missing = {cell.id: ("missing", "", "") for cell in study.planned if cell.id not in finished}
    failed = {failure.id: ("failed", failure.error, failure.log) for failure in study.failures}
    rows = [tuple(map(Entry, (id_, *texts))) for id_, texts in {**missing, **failed}.items()]
    note = "Failed cells with their error and log. A missing cell was not started, or did not finish."
    header = ("cell", "state", "error", "log")
    return Table("cells_without_result", "Cells without a result", note, header, tuple(rows), text_columns=4)
