"""Everything a report is, written to a folder so that no crash leaves half a page where a whole one stood."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cell import Cell
from orchestrator.identity import slug
from orchestrator.report.accounts import cells_table, costs_table, missing_table, published_table, sources_table
from orchestrator.report.build import dataset_table, explorer_table, main_table, pairs_table, ranks_table
from orchestrator.report.figures import accuracy_against_k, dataset_bars
from orchestrator.report.formats import to_csv, to_latex, to_markdown
from orchestrator.report.page import PanelFigures, render_page
from orchestrator.report.palette import Style, styles_of
from orchestrator.report.rows import LabelOf, PublishedOf, SourceRow, frame_of
from orchestrator.report.study import Panel, Study, study_of
from orchestrator.report.tables import Table
from orchestrator.results import Failure, Result

_STALE_SECONDS = 3600
_BAR_SHOTS = (4, 16)
"""The k whose accuracies by dataset are drawn, as in the literature; the largest k where a grid has neither."""


@dataclass(frozen=True)
class ReportFiles:
    """Where a report lies. ``tables`` and ``figures`` are sorted."""

    page: Path
    rows: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]


def write_report(
    *,
    grid_name: str,
    title: str,
    description: str,
    results: Sequence[Result],
    failures: Sequence[Failure],
    planned: Sequence[Cell],
    label_of: LabelOf,
    published_of: PublishedOf | None = None,
    sources: Sequence[SourceRow] = (),
    folder: Path,
) -> ReportFiles:
    """Write ``index.html``, ``rows.csv``, ``tables/*.{csv,md,tex}`` and ``figures/*.{png,svg}`` into ``folder``.

    Everything is made beside its place first and moved in when all of it is there, the page last. Tables and figures
    of an earlier report that this one does not have are removed.
    """
    study = study_of(
        results=results,
        failures=failures,
        planned=planned,
        label_of=label_of,
        published_of=published_of,
        sources=sources,
    )
    styles = styles_of(study.method_names)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as name:
        build = Path(name)
        for kind in ("tables", "figures"):
            (build / kind).mkdir()
        frame_of(study.rows).to_csv(build / "rows.csv", index=False)
        for table in all_tables(study, styles):
            for ending, text in (("csv", to_csv(table)), ("md", to_markdown(table)), ("tex", to_latex(table))):
                (build / "tables" / f"{slug(table.name)}.{ending}").write_text(text, encoding="utf-8")
        figures = {panel: panel_figures(panel, styles) for panel in study.panels}
        for own in figures.values():
            for figure in (*own.lines, *own.bars):
                (build / "figures" / f"{slug(figure.name)}.svg").write_text(figure.svg, encoding="utf-8")
                (build / "figures" / f"{slug(figure.name)}.png").write_bytes(figure.png)
        beside = sorted(path.relative_to(build).as_posix() for path in build.rglob("*") if path.is_file())
        page = render_page(
            study,
            grid_name=grid_name,
            title=title,
            description=description,
            main_tables={panel: main_table(panel, styles) for panel in study.panels},
            figures=figures,
            styles=styles,
            files_beside=beside,
        )
        (build / "index.html").write_text(page, encoding="utf-8")
        return _move_in(build, folder, beside)


def all_tables(study: Study, styles: dict[str, Style]) -> Iterator[Table]:
    """Every table of a report that is written to files."""
    for panel in study.panels:
        yield main_table(panel, styles)
        yield ranks_table(panel, styles)
        for k in panel.ks:
            yield dataset_table(panel, k, styles)
            yield pairs_table(panel, k)
    for track in study.tracks:
        yield explorer_table(study, track)
    if study.rows:
        yield costs_table(study.rows, styles)
    if study.sources:
        yield sources_table(study.sources)
    if (published := published_table(study)) is not None:
        yield published
    if study.missing or study.failures:
        yield missing_table(study)
        yield cells_table(study)


def panel_figures(panel: Panel, styles: dict[str, Style]) -> PanelFigures:
    """The figures of one panel."""
    line = accuracy_against_k(panel, styles)
    ks = [k for k in panel.ks if k in _BAR_SHOTS] or [panel.ks[-1]]
    bars = [dataset_bars(panel, k, styles) for k in ks]
    return PanelFigures(lines=(line,) if line else (), bars=tuple(bar for bar in bars if bar))


def _move_in(build: Path, folder: Path, beside: Sequence[str]) -> ReportFiles:
    """Move the finished files to their places, one atomic replacement each, the page last."""
    for kind in ("tables", "figures"):
        (folder / kind).mkdir(exist_ok=True)
        for old in (folder / kind).iterdir():
            if old.is_file() and f"{kind}/{old.name}" not in beside:
                old.unlink()
    for path in (*beside, "index.html"):
        (build / path).replace(folder / path)
    return ReportFiles(
        page=folder / "index.html",
        rows=folder / "rows.csv",
        tables=tuple(folder / path for path in beside if path.startswith("tables/")),
        figures=tuple(folder / path for path in beside if path.startswith("figures/")),
    )


def _remove_leftovers(folder: Path) -> None:
    """Remove what a killed report left behind; a younger one may belong to a report being written right now."""
    for leftover in folder.glob(".building-*"):
        if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
