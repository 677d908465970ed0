"""The paper's tables of datasets: class counts, and accuracies of the fine-tuned source models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.paper.published import Footnotes, published_datasets
from orchestrator.report.tables.table import Entry, Table, difference, number

_TABLES = (
    ("general_detail", "general", "General datasets and their fine-tuned models"),
    ("rs_detail", "remote_sensing", "Remote-sensing datasets and their fine-tuned models"),
)
"""Label, domain and title of each table."""


def dataset_tables(grid: GridResults | None = None) -> Iterator[Table]:
    """Yield the tables of datasets with the printed numbers alone, or those that a source model of ``grid`` is in.

    The models' measured accuracies then stand beside the published ones.
    """
    names_of, sources = (grid.names_of, grid.sources) if grid else (None, ())
    measured = {names_of(s.backbone, s.dataset): s.fine_tuned_accuracy for s in sources} if names_of else {}
    for label, domain, title in _TABLES:
        printed = {(row.backbone, row.dataset) for row in published_datasets() if row.domain == domain}
        if grid is None or not printed.isdisjoint(measured):
            yield _table(label, domain, title, measured)


def _table(label: str, domain: str, title: str, measured: Mapping[tuple[str | None, str | None], float]) -> Table:
    """Return one table.

    ``measured`` maps the paper's (backbone, dataset) to our accuracy; empty for printed numbers alone.
    """
    published = [row for row in published_datasets() if row.domain == domain]
    backbones = list(dict.fromkeys(row.backbone for row in published))
    printed = {(row.backbone, row.dataset): row for row in published}
    footnotes = Footnotes(label)
    rows = []
    for dataset in dict.fromkeys(row.dataset for row in published):
        first = printed[backbones[0], dataset]
        entries = [Entry(first.printed_as, footnotes=footnotes.of({"dataset": dataset})), number(first.classes, "d")]
        for backbone in backbones:
            accuracy, ours = printed[backbone, dataset].finetuned_accuracy, measured.get((backbone, dataset))
            lead = difference(None if ours is None else ours - accuracy)
            entries += [number(ours), number(accuracy), lead] if measured else [number(accuracy)]
        rows.append(tuple(entries))
    note = "Number of classes and accuracy of the fine-tuned model in per cent, as printed"
    columns = [kind for _ in backbones for kind in ("measured", "published", "difference")] if measured else backbones
    return Table(
        name=f"paper_{label}" + ("_beside" if measured else ""),
        title=title + (", measured beside published" if measured else " (published)"),
        note=f"{note}, beside ours and the difference in points." if measured else f"{note}.",
        header=("dataset", "classes", *columns),
        rows=tuple(rows),
        column_groups=(("", 2), *((backbone, 3) for backbone in backbones)) if measured else (),
        footnotes=footnotes.all(),
    )
