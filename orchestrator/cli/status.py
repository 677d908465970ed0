"""``status``: how far the run of a grid is, or every run of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from orchestrator.cli.options import DEFAULT_STORE, CatalogFiles, DataRoot, OptionalGrid, StoreUrl, store_url
from orchestrator.cli.workspace import open_workspace
from orchestrator.util.errors import UserError


def status(
    grid: OptionalGrid = None,
    watch: Annotated[bool, typer.Option("--watch", help="keep showing the run's progress until it ends")] = False,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
) -> None:
    """Show how far a grid is, or all runs of a store.

    With a grid: the progress of its run, and its finished, failed and open cells.
    """
    from orchestrator.progress.status_view import status_view, store_view
    from orchestrator.progress.status_view import watch as watch_run
    from orchestrator.store import Store

    if grid is None and watch:
        raise UserError("--watch takes a grid", hint="e.g. status demo --watch")
    if grid is None:
        Console().print(store_view(Store(store_url(store))))
    elif watch:
        watch_run(Store(store_url(store)), Path(grid).stem, Console())
    else:
        workspace = open_workspace(grid, store, data_root, catalog)
        Console().print(status_view(workspace.measured_plan(), workspace.store))
