"""A whole session of the ``grid`` command, and the parts of it that other commands use: track, report, serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.errors import UserError
from orchestrator.plan import Plan, make_plan, source_models
from orchestrator.published import published_accuracy
from orchestrator.run import Ran, RunOptions, execute, only_driver
from orchestrator.show import counts_line, estimate_line, status_path
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.grid import Grid
    from orchestrator.report import ReportFiles, Row, SourceRow
    from orchestrator.settings import RunSettings


def run_session(
    grid: Grid, catalog: Catalog, store: Store, settings: RunSettings, options: RunOptions, console: Console
) -> int:
    """Plan, build, run, track, report. Returns the exit code: 0, or 1 when something on record has failed.

    Raises ``UserError`` before any work for what the user has to mend first.
    """
    data_root = Path(settings.data_root) if settings.data_root else None
    with only_driver(store, grid.name):
        plan = make_plan(grid, catalog, store, data_root, retry_failed=options.retry_failed)
        console.print(f"{grid.name}: {grid.title}", style="bold", highlight=False)
        console.print(counts_line(plan), highlight=False, soft_wrap=True)
        ran = Ran()
        if plan.todo:
            console.print(estimate_line(plan), highlight=False, soft_wrap=True)
            ran = _run(plan, catalog, store, settings, options, console)
        after = make_plan(grid, catalog, store, data_root)
        files = write_grid_report(after, catalog, store, data_root)
        console.print(sync_tracking(after, catalog, store, files), highlight=False, soft_wrap=True)
    _print_end(after, ran, files, store, console)
    return 1 if after.failed else 0
