"""Writes a report into a folder.

The folder keeps the old report until all files of the new one are made. So if the process crashes while it makes them,
the old report stays as it was.
"""

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from orchestrator.analysis.rows import frame_of
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.page.report_page import render_page
from orchestrator.report.registry import GROUP_FIGURES, Figures, all_of, group_figures, report_tables
from orchestrator.report.tables.formats import FILE_FORMATS
from orchestrator.report.tables.table import Table
from orchestrator.util.atomic_files import writing
from orchestrator.util.identity import slug
from orchestrator.util.machine import usable_processors

_STALE_SECONDS = 3600
_MOST_PROCESSES = 4
_GROUPS_PER_PROCESS = 3


def write_report(grid: GridResults, folder: Path, *, inspected: Collection[str] = ()) -> Path:
    """Write ``index.html``, ``rows.csv``, ``verdict.json``, ``tables/`` and ``figures/`` into ``folder``.

    Returns the path of ``index.html``.

    Tables are CSV, Markdown and LaTeX files, figures PNG, SVG and PDF files. ``inspected``: ids of the cells that
    ``inspect`` has made pages of; the report links to these pages.

    All files are first written to a temporary folder. Then they are moved into ``folder``, the page last. Tables and
    figures that only an earlier report has are removed.

    Raises ``UserError`` if the folder cannot be written to.
    """
    with (
        writing("the report", str(folder), "make room, or write it elsewhere with: report GRID -o FOLDER"),
        _temporary_folder(folder) as build,
        drawing(grid, _processes(grid)) as draw,
    ):
        for kind in ("tables", "figures"):
            (build / kind).mkdir()
        frame_of(grid.rows).to_csv(build / "rows.csv", index=False)
        write_verdicts(grid.verdict_records(), build)
        tables = report_tables(grid)
        write_tables({slug(table.name): table for table in all_of(tables)}, build / "tables", FILE_FORMATS)
        figures = draw()
        for figure in all_of(figures):
            for ending, content in (("svg", figure.svg.encode()), ("png", figure.png), ("pdf", figure.pdf)):
                (build / "figures" / f"{slug(figure.name)}.{ending}").write_bytes(content)
        paths = sorted(path.relative_to(build).as_posix() for path in build.rglob("*") if path.is_file())
        page = render_page(grid, tables, figures, files_beside=paths, inspected=inspected)
        (build / "index.html").write_text(page, encoding="utf-8")
        for kind in ("tables", "figures"):
            (folder / kind).mkdir(exist_ok=True)
            for old in (folder / kind).iterdir():
                if old.is_file() and f"{kind}/{old.name}" not in paths:
                    old.unlink()
        for path in (*paths, "index.html"):
            (build / path).replace(folder / path)
    return folder / "index.html"


@contextmanager
def drawing(grid: GridResults, processes: int) -> Iterator[Callable[[], dict[ComparisonGroup, Figures]]]:
    """Yield a function that returns the figures of every group.

    With ``processes`` of 2 or more, other processes start to draw when the ``with`` block begins. Otherwise the
    function draws when it is called. Other processes import the main module again, so a script that writes a large
    report must do so under ``if __name__ == "__main__"``. If another process is killed, for example because memory is
    short, this process draws the figures.
    """

    def here() -> dict[ComparisonGroup, Figures]:
        return {group: group_figures(grid, group, GROUP_FIGURES) for group in grid.groups}

    if processes < 2:
        yield here
        return
    # Ctrl-C reaches the other processes too. They ignore it, and this process ends them.
    pool = ProcessPoolExecutor(processes, get_context("spawn"), signal.signal, (signal.SIGINT, signal.SIG_IGN))
    tasks = [pool.submit(group_figures, _part_of(group, grid), group, GROUP_FIGURES) for group in grid.groups]

    def collected() -> dict[ComparisonGroup, Figures]:
        try:
            return dict(zip(grid.groups, [task.result() for task in tasks], strict=True))
        except BrokenProcessPool:
            return here()

    try:
        yield collected
    finally:
        pool.shutdown(cancel_futures=True)


def _processes(grid: GridResults) -> int:
    """Return how many other processes draw the figures.

    Below 2, this process draws them itself: for a small report, starting other processes would take longer.
    """
    drawn = sum(not group.of_changed_protocol for group in grid.groups)
    return min(_MOST_PROCESSES, usable_processors(), drawn // _GROUPS_PER_PROCESS)


def _part_of(group: ComparisonGroup, grid: GridResults) -> GridResults:
    """Return the part of the results that the figures of ``group`` read. It is sent to another process."""
    sent = {name: getattr(grid, name) for name in ("methods", "method_names", "verdicts", "display_names", "styles")}
    part = GridResults(results=(), label_of=str, metric=grid.metric)
    vars(part).update(sent, groups=(group,), cells={row.cell_id: grid.cells[row.cell_id] for row in group.rows})
    return part


def write_verdicts(records: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write the records of verdicts into ``verdict.json``."""
    (folder / "verdict.json").write_text(json.dumps(records, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_tables(tables: Mapping[str, Table], folder: Path, formats: Mapping[str, Callable[[Table], str]]) -> None:
    """Write every table in every format.

    Args:
        tables: name of the files without the ending -> table.
        formats: ending of the file -> the function that prints a table.
    """
    for name, table in tables.items():
        for ending, to_text in formats.items():
            (folder / f"{name}.{ending}").write_text(to_text(table), encoding="utf-8")


@contextmanager
def _temporary_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder inside ``folder``, and remove it at the end. Also remove the folders of killed processes.

    Folders younger than ``_STALE_SECONDS`` stay, because a process may still be writing into them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in folder.glob(".building-*"):
        if time.time() - leftover.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=folder) as name:
        yield Path(name)
