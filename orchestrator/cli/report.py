"""``report`` and ``results``: a grid's results as a report for people, and as a table for other programs."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from orchestrator.cli.options import GridName, Metric, OptionalGrid, SetValues, StoreSettings, with_options
from orchestrator.cli.workspace import open_results, results_overrides
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.console import print_line, print_note
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize

FIELD = "eleven"
"""The word after ``report --published`` that selects the literature's numbers on eleven datasets."""


@with_options
def report(
    grid: OptionalGrid = None,
    set_: SetValues = None,
    published: Annotated[
        bool, typer.Option("--published", help="the paper's tables; with 'eleven', tables of the literature")
    ] = False,
    reprinted: Annotated[
        bool, typer.Option("--reprinted", help="with --published eleven: add numbers that a source copied from another")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="folder; by default the store, and for published tables ./published"),
    ] = None,
    metric: Metric = None,
    *,
    settings: StoreSettings,
) -> None:
    """Write a grid's report, or tables of published numbers.

    `--published` writes the tables of the paper. `--published eleven` writes the literature's numbers on eleven
    datasets.
    """
    if (grid not in (None, FIELD)) if published else (grid is None):
        hint = f"for example: report demo, report --published, report --published {FIELD}"
        raise UserError("`report` takes either a grid or --published", hint=hint)
    if reprinted and not (published and grid):
        raise UserError(f"this option needs --published {FIELD}", where="--reprinted", hint="leave it out")
    if published and (metric or set_):
        where = "--metric" if metric else "--set"
        raise UserError("published numbers are accuracies and belong to no grid", where=where, hint="leave it out")
    if published or grid is None:
        from orchestrator.report.published_report import write_field, write_published

        folder = output or Path("published")
        written = f"published: {write_field(folder, reprinted=reprinted) if grid else write_published(folder)}"
    else:
        from orchestrator.report.grid_report import read_finished_results, report_location, write_grid_report
        from orchestrator.report.write import write_report

        workspace = open_results(grid, set_, settings=settings)
        grid_results = read_finished_results(workspace.results_plan(metric), workspace.store)
        if output is not None:
            written = f"report: {write_report(grid_results, output)}"
        else:
            page = write_grid_report(grid_results, workspace.store, metric)
            written = f"report: {report_location(page, workspace.store)}"
    print_line(written)


@with_options
def results(
    grid: GridName,
    set_: SetValues = None,
    format_: Annotated[
        Literal["csv", "json", "parquet"] | None,
        typer.Option("--format", help="format of the table; by default the file's suffix, or csv"),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="a file; by default standard output")] = None,
    metrics: Annotated[
        bool, typer.Option("--metrics", help="balanced accuracy, F1, calibration and others, from stored predictions")
    ] = False,
    metric: Metric = None,
    *,
    settings: StoreSettings,
) -> None:
    """Write a grid's results as a table.

    The table has one row for each finished cell and test split. docs/results.md describes the columns.
    """
    from orchestrator.sharing.frames import FORMATS, metric_records, result_rows, row_records

    if metrics and metric:
        raise UserError("--metrics writes all metrics", where="--metric", hint="leave it out")
    suffix = output.suffix.lower().removeprefix(".") if output else ""
    chosen = format_ or suffix or "csv"
    if chosen not in FORMATS or (suffix in FORMATS and suffix != chosen):
        what = f"the suffix of {output} {'names no format' if chosen == suffix else f'does not fit --format {chosen}'}"
        raise UserError(what, where="-o", hint="name a .csv, .json or .parquet file, or give --format")
    if chosen == "parquet" and output is None:
        raise UserError("Parquet is a binary format and is not printed", where="--format", hint="name a file with -o")
    seen = results_overrides(grid, settings, set_)
    if metrics:
        records, unscored = metric_records(grid, settings, seen)
    else:
        rows, unscored = result_rows(grid, settings, seen, metric)
        records = row_records(rows)
    print_note(unscored)
    content = FORMATS[chosen](records)
    if output is None:
        sys.stdout.buffer.write(content)
        return
    with writing("the table", f"-o {output}"), replacing(output) as partial:
        partial.write_bytes(content)
    print_line(f"{output}: {pluralize(len(records), 'row')}")
