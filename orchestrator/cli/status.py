"""``status``: show the progress of a grid, or of every run of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.options import AsJson, OptionalGrid, SetValues, StoreSettings, print_json, with_options
from orchestrator.cli.workspace import results_overrides
from orchestrator.util.console import Console, print_note
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings
    from orchestrator.sharing.grid_listing import GridListing
    from orchestrator.store import Store


@with_options
def status(
    grid: OptionalGrid = None,
    set_: SetValues = None,
    watch: Annotated[bool, typer.Option("--watch", help="keep showing the run's progress until it ends")] = False,
    as_json: AsJson = False,
    *,
    settings: StoreSettings,
) -> None:
    """Show the progress of a grid, or of all runs of a store.

    For a grid, the progress of its run and the finished, failed and open cells are shown.
    """
    from orchestrator.progress import view
    from orchestrator.store import Store

    if grid is None and watch:
        raise UserError("--watch takes a grid", hint="e.g. status demo --watch")
    if watch and as_json:
        raise UserError("--watch and --json exclude each other", hint="give one of them")
    if set_ and (grid is None or watch):
        raise UserError("only `status GRID` without --watch reads this option", where="--set", hint="leave it out")
    opened = Store(settings.store_url)
    if as_json:
        print_json(_record(opened, grid, settings, set_))
    elif grid is None:
        Console().print(view.store_view(opened))
    elif watch:
        view.watch(opened, grid, Console())
    else:
        listing = _listing(grid, settings, set_)
        # Only the terminal wraps the command that continues a run: of a command in two lines, a shell runs the first.
        Console().print(view.status_view(opened, grid, listing.title, listing.labels), soft_wrap=True)


def _listing(grid: str, settings: RunSettings, set_: list[str] | None) -> GridListing:
    """Return the grid's cells. A note says so if files that are part of their identity are absent."""
    from orchestrator.sharing.grid_listing import list_grid

    listing = list_grid(grid, settings, results_overrides(grid, settings, set_))
    print_note(listing.absent)
    return listing


def _record(store: Store, grid: str | None, settings: RunSettings, set_: list[str] | None) -> dict[str, Any]:
    """Return a grid's last run, its failures, and how many cells are in each state.

    Without a grid, return the last run of every grid in the store.
    """
    from orchestrator.progress.status_file import Status, last_run, read_status

    def run(found: Status | None) -> dict[str, Any] | None:
        return None if found is None else found.model_dump(mode="json", exclude={"format"})

    if grid is None:
        statuses = (read_status(store.files, name) for name in store.files.records("status"))
        return {"store": store.url, "runs": [shown for status in statuses if (shown := run(status))]}
    listing = _listing(grid, settings, set_)
    results, failed, damaged = store.read_outcomes(listing.labels)
    last = last_run(store.files, grid)
    open_ = len(listing.labels) - len(results) - len(failed)
    return {
        "store": store.url,
        "grid": listing.name,
        "title": listing.title,
        "cells": {
            "all": len(listing.labels),
            "finished": len(results),
            "failed": len(failed),
            "open": open_,
            "left_out": min(last.shot.left_out, open_) if last else 0,
        },
        "damaged": damaged,
        "failures": [{"id": each.id, "error": each.error, "log": each.log} for each in failed],
        "run": run(last),
    }
