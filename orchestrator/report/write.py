"""Writes a report into a folder.

The folder keeps the old report until all files of the new one are made. So if the process crashes while it makes them,
the old report stays as it was.
"""

import csv
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any

from bolt.util.json_text import read_json
from orchestrator.analysis.rows import ROW_FIELDS, Row
from orchestrator.report.analysis import GridResults
from orchestrator.report.page.report_page import render_page
from orchestrator.report.registry import T, group_figures, report_tables
from orchestrator.report.tables.formats import FILE_FORMATS
from orchestrator.report.tables.table import Table
from orchestrator.util.atomic_files import writing
from orchestrator.util.identity import file_digest, slug

_STALE_SECONDS = 3600
_WRITTEN = ".report-files.json"
"""A file in the report's folder with the checksums of the report's tables and figures."""


def write_report(grid: GridResults, folder: Path, *, inspected: Collection[str] = ()) -> Path:
    """Write ``index.html``, ``rows.csv``, ``verdict.json``, ``tables/`` and ``figures/`` into ``folder``.

    Tables are CSV, Markdown and LaTeX files, figures PNG, SVG and PDF files. ``inspected``: ids of the cells that
    ``inspect`` has made pages of; the report links to these pages. Returns the path of ``index.html``.

    All files are first written to a temporary folder. Then they are moved into ``folder``, the page last. Tables and
    figures that an earlier report wrote there are removed if this one has none of the name, and nobody changed them.

    Raises ``UserError`` if the folder cannot be written to.
    """
    with (
        writing("the report", str(folder), "make room, or write it elsewhere with: report GRID -o FOLDER"),
        _temporary_folder(folder) as build,
    ):
        files = _report_files(grid, inspected)
        write_files(files, build)
        before, now = _written(folder), {path: file_digest(build / path) for path in files if "/" in path}
        write_files({_WRITTEN: json.dumps(now, indent=1).encode()}, build)
        for kind in ("tables", "figures"):
            (folder / kind).mkdir(exist_ok=True)
            for old in (folder / kind).iterdir():
                name = f"{kind}/{old.name}"
                if name in before.keys() - now.keys() and old.is_file() and file_digest(old) == before[name]:
                    old.unlink()
        for path in (_WRITTEN, *files):
            (build / path).replace(folder / path)
    return folder / "index.html"


def _written(folder: Path) -> dict[str, str]:
    """Return the checksums of the files that the last report wrote into the folder; empty if they are unknown."""
    try:
        return dict(read_json(folder / _WRITTEN))
    except (OSError, ValueError, TypeError):
        return {}


def _report_files(grid: GridResults, inspected: Collection[str]) -> dict[str, bytes]:
    """Return the files of a report, the page last: path in the report's folder -> content."""
    tables, figures = report_tables(grid), {group: group_figures(grid, group) for group in grid.groups}
    files = {
        "rows.csv": rows_csv(grid.rows),
        "verdict.json": verdict_file(grid.verdict_records()),
        **table_files({slug(table.name): table for table in all_of(tables)}, FILE_FORMATS),
    }
    for figure in all_of(figures):
        for ending, content in (("svg", figure.svg.encode()), ("png", figure.png), ("pdf", figure.pdf)):
            files[f"figures/{slug(figure.name)}.{ending}"] = content
    page = render_page(grid, tables, figures, files_beside=sorted(files), inspected=inspected)
    return {**files, "index.html": page.encode()}


def all_of(made: Mapping[Any, Mapping[str, list[T]]]) -> list[T]:
    """Return the tables or figures of all groups and sections as one list."""
    return [one for sections in made.values() for own in sections.values() for one in own]


def rows_csv(rows: Iterable[Row], columns: Sequence[str] = ROW_FIELDS) -> bytes:
    """Return ``rows`` as CSV with a header. A missing value is an empty field."""
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([columns, *map(attrgetter(*columns), rows)])
    return stream.getvalue().encode()


def verdict_file(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the content of ``verdict.json``."""
    return f"{json.dumps(records, indent=1, ensure_ascii=False)}\n".encode()


def table_files(tables: Mapping[str, Table], formats: Mapping[str, Callable[[Table], str]]) -> dict[str, bytes]:
    """Return every table in every format: ``tables/NAME.ENDING`` -> content.

    ``tables``: name of the files -> table. ``formats``: ending of the files -> the function that prints a table.
    """
    return {
        f"tables/{name}.{ending}": to_text(table).encode()
        for name, table in tables.items()
        for ending, to_text in formats.items()
    }


def write_files(files: Mapping[str, bytes], folder: Path) -> None:
    """Write files into a folder. ``files``: path in the folder -> content."""
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


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
