"""``results``: the results of a grid as a table for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import GridName, StoreSettings, with_settings
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError, unknown_name
from orchestrator.util.units import pluralize


@with_settings
def results(
    grid: GridName,
    format_: Annotated[str, typer.Option("--format", help="csv, json or parquet")] = "csv",
    output: Annotated[Path | None, typer.Option("-o", "--output", help="a file; by default standard output")] = None,
    *,
    settings: StoreSettings,
) -> None:
    """Write a grid's results as a table.

    It has one row for each finished cell and test split. docs/results.md describes the columns.
    """
    from orchestrator.sharing.frames import FORMATS, result_rows

    if format_ not in FORMATS:
        raise unknown_name("format", format_, FORMATS, where="--format")
    if format_ == "parquet" and output is None:
        raise UserError("a Parquet file is not text", where="--format", hint="name a file with -o")
    rows = result_rows(grid, settings)
    content = FORMATS[format_](rows)
    if output is None:
        sys.stdout.buffer.write(content)
        return
    with writing("the table", f"-o {output}"), replacing(output) as partial:
        partial.write_bytes(content)
    print_line(f"{output}: {pluralize(len(rows), 'row')}")
