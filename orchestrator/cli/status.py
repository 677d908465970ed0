"""``status``: how far the run of a grid is, or every run of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.options import OptionalGrid, SetValues, StoreSettings, with_settings
from orchestrator.cli.workspace import values_seen
from orchestrator.util.console import Console
from orchestrator.util.errors import UserError


@with_settings
def status(
    grid: OptionalGrid = None,
    set_: SetValues = None,
    watch: Annotated[bool, typer.Option("--watch", help="keep showing the run's progress until it ends")] = False,
    *,
    settings: StoreSettings,
) -> None:
    """Show how far a grid is, or all runs of a store.

    With a grid: the progress of its run, and its finished, failed and open cells.
    """
    from orchestrator.progress.status_view import status_view, store_view
    from orchestrator.progress.status_view import watch as watch_run
    from orchestrator.store import Store

    if grid is None and watch:
        raise UserError("--watch takes a grid", hint="e.g. status demo --watch")
    opened = Store(settings.store_url)
    if grid is None:
        Console().print(store_view(opened))
    elif watch:
        watch_run(opened, Path(grid).stem, Console())
    else:
        from orchestrator.sharing.grid_listing import list_grid

        listing = list_grid(grid, settings, values_seen(grid, settings, set_))
        Console().print(status_view(opened, listing.name, listing.title, listing.labels))
