"""``report``: write a grid's report from its results, or the paper's tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import OptionalGrid, StoreSettings, with_settings
from orchestrator.cli.workspace import open_workspace
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError


@with_settings
def report(
    grid: OptionalGrid = None,
    published: Annotated[
        bool, typer.Option("--published", help="the paper's tables alone; needs no grid and no store")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="folder for the paper's tables; by default ./published")
    ] = None,
    *,
    settings: StoreSettings,
) -> None:
    """Write a grid's report, or the paper's tables."""
    if published == (grid is not None):
        raise UserError(
            "give report either a grid or --published", hint="for example: report demo, or report --published"
        )
    if output is not None and not published:
        raise UserError(
            "a grid's report is written into its store", where="--output", hint="leave it out, or give --published"
        )
    if grid is None:
        from orchestrator.report.write import write_published

        written = f"published: {write_published(output or Path('published'))}"
    else:
        from orchestrator.report.grid_report import grid_study, report_location, write_grid_report

        workspace = open_workspace(grid, settings)
        files = write_grid_report(grid_study(workspace.plan(whole=True), workspace.store), workspace.store)
        written = f"report: {report_location(files, workspace.store)}"
    print_line(written)
