"""Everything a report is, written to a folder so that no crash leaves half a page where a whole one stood."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.rows import LabelOf, NamesOf, PublishedOf, SourceRow, frame_of
from orchestrator.report.analysis.study import study_of
from orchestrator.report.figure_pool import Drawing
from orchestrator.report.page.report_page import render_page
from orchestrator.report.registry import common_tables, panel_tables, tables_of_panel
from orchestrator.report.styles import styles_of
from orchestrator.report.tables.formats import to_csv, to_latex, to_markdown
from orchestrator.store.results import Failure, Result
from orchestrator.util.identity import slug

_STALE_SECONDS = 3600


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
    names_of: NamesOf | None = None,
    sources: Sequence[SourceRow] = (),
    folder: Path,
) -> ReportFiles:
    """Write ``index.html``, ``rows.csv``, ``tables/*.{csv,md,tex}`` and ``figures/*.{png,svg,pdf}`` into ``folder``.

    Everything is made beside its place first and moved in when all of it is there, the page last. Tables and figures
    of an earlier report that this one does not have are removed.
    """
    study = study_of(
        results=results,
        failures=failures,
        planned=planned,
        label_of=label_of,
        published_of=published_of,
        names_of=names_of,
        sources=sources,
    )
    styles = styles_of(study.method_names)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(folder)
    building = tempfile.TemporaryDirectory(prefix=".building-", dir=folder)
    with building as name, Drawing(study, styles) as drawing:
        build = Path(name)
        for kind in ("tables", "figures"):
            (build / kind).mkdir()
        frame_of(study.rows).to_csv(build / "rows.csv", index=False)
        tables = {panel: panel_tables(study, panel, styles) for panel in study.panels}
        common = {table.name: table for table in common_tables(study, styles)}
        for table in (*(table for own in tables.values() for table in tables_of_panel(own)), *common.values()):
            for ending, text in (("csv", to_csv(table)), ("md", to_markdown(table)), ("tex", to_latex(table))):
                (build / "tables" / f"{slug(table.name)}.{ending}").write_text(text, encoding="utf-8")
        figures = drawing.finish()
        for drawn in figures.values():
            for figure in drawn.all:
                for ending, content in (("svg", figure.svg.encode()), ("png", figure.png), ("pdf", figure.pdf)):
                    (build / "figures" / f"{slug(figure.name)}.{ending}").write_bytes(content)
        beside = sorted(path.relative_to(build).as_posix() for path in build.rglob("*") if path.is_file())
        page = render_page(
            study,
            grid_name=grid_name,
            title=title,
            description=description,
            tables=tables,
            common=common,
            figures=figures,
            styles=styles,
            files_beside=beside,
        )
        (build / "index.html").write_text(page, encoding="utf-8")
        return _move_in(build, folder, beside)


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
