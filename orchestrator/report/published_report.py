"""Writes a report of published numbers: the paper's, or the literature's on the usual few-shot datasets."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.report.page.rendering import render
from orchestrator.report.paper.field import field_tables, field_verdicts, sources_table
from orchestrator.report.paper.paper_tables import published_tables
from orchestrator.report.paper.published import published_accuracies, published_verdicts
from orchestrator.report.tables.formats import FILE_FORMATS, to_html
from orchestrator.report.tables.latex import to_latex_document
from orchestrator.report.tables.table import Entry, Table, number
from orchestrator.report.write import table_files, verdict_file, write_files
from orchestrator.util.errors import UserError

_TRACK = "fewshot"


def write_published(folder: Path) -> Path:
    """Write the paper's tables from ``grids/published``, and return the path of their page.

    The files are ``tables/paper_*.{csv,md,tex,html}``, ``tables.tex`` (one document with all tables),
    ``verdict.json`` and ``index.html``. Raises ``UserError`` if ``folder`` is a file.
    """
    lede = (
        "The tables of the paper, as printed. Footnotes mark numbers that a fair measurement would not reproduce, and "
        "give the evidence: the authors' code, or the numbers themselves."
    )
    return _write(folder, paper_verdicts(), [*published_tables()], "the printed few-shot accuracies", lede)


def write_field(folder: Path, *, reprinted: bool = False) -> Path:
    """Write the literature's numbers on the eleven usual few-shot datasets, and return the path of their page.

    The files are like those of :func:`write_published`, with ``tables/field_*`` for the numbers. ``reprinted``: whether
    to show also the numbers that a publication has copied from another one.
    """
    lede = (
        "What the literature has measured on CoOp's eleven datasets and on the variants of ImageNet. Every line names "
        "its source. Footnotes say which labels chose a method's settings, and what else is special about a number. "
        + "Numbers that one publication reprints from another are included."
        * reprinted
    )
    verdicts, tables = field_verdicts(reprinted=reprinted), field_tables(reprinted=reprinted)
    return _write(folder, verdicts, [*tables, sources_table()], "the published accuracies", lede)


def _write(folder: Path, verdicts: Sequence[VerdictSeries], tables: Sequence[Table], scores: str, lede: str) -> Path:
    from bolt.methods import METHODS  # imports torch

    tables = [published_verdict_table(verdicts, scores), *tables]
    try:
        (folder / "tables").mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"{folder} is not a folder", where="--output", hint="give a folder, or a new name") from None
    titles = {name: method.title for name, method in METHODS.items()}
    files = {
        **table_files({table.name: table for table in tables}, {**FILE_FORMATS, "html": to_html}),
        "tables.tex": to_latex_document(tables).encode(),
        "verdict.json": verdict_file([record for series in verdicts for record in series.records(titles)]),
        "index.html": render("published.html.j2", tables=tables, lede=lede).encode(),
    }
    write_files(files, folder)
    return folder / "index.html"


def paper_verdicts() -> tuple[VerdictSeries, ...]:
    """Return the verdicts on the paper's few-shot accuracies."""
    return published_verdicts({at: accuracy for at, accuracy in published_accuracies().items() if at.track == _TRACK})


def published_verdict_table(verdicts: Sequence[VerdictSeries], scores: str) -> Table:
    """Make a table with a row for each verdict: which methods may be the best, k, and the number of datasets.

    ``scores``: what the verdicts compare, for the title of the table.
    """
    rows = []
    for series in verdicts:
        track, _, backbone, domain = series.place
        setting = "" if track == _TRACK else track
        place = (Entry(setting.replace("_", " ")), Entry(domain.replace("_", " ")), Entry(backbone))
        for verdict in series.verdicts:
            names = {score.method: title_of(score.method) for score in verdict.methods}
            numbers = (number(verdict.k or None, "d"), number(verdict.n, "d"))
            rows.append((*place, Entry(verdict.statement(names)), *numbers))
    table = Table(
        name="paper_verdict",
        title=f"Which methods may be the best by {scores}",
        note="At 95 per cent, over the datasets, by the same rule as for measured accuracies. Published accuracies "
        "have no seeds.",
        header=("setting", "domain", "backbone", "verdict", "k", "datasets"),
        rows=tuple(rows),
        text_columns=4,
    )
    return table.without_constant_columns(0, 2)
