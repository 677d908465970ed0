"""``status``: how far the run of a grid is, or every run of a store."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli.options import OptionalGrid, StoreSettings, with_settings
from orchestrator.cli.workspace import earlier_runs
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings
    from orchestrator.progress.status_view import GridState
    from orchestrator.store import Store


@with_settings
def status(
    grid: OptionalGrid = None,
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
        Console().print(status_view(_grid_state(grid, opened, settings), opened))


def _grid_state(grid: str, store: Store, settings: RunSettings) -> GridState:
    """How far a grid is. If it was run on other datasets only (``--set datasets=``), how far it is on those."""
    from orchestrator.progress.status_view import read_grid_state
    from orchestrator.sharing.grid_listing import list_grid

    listing = list_grid(grid, settings)
    state = read_grid_state(store, listing.name, listing.title, listing.labels)
    if state.counts.done or state.failed:
        return state
    earlier: dict[str, str] = {}
    for overrides in earlier_runs(store, listing.name):
        with suppress(UserError):  # a dataset that the catalog does not have any more
            earlier.update(list_grid(grid, settings, overrides).labels)
    return read_grid_state(store, listing.name, listing.title, earlier) if earlier else state
