"""The output of the ``status`` command: the progress of a grid, once or until its run ends, or the runs of a store."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from orchestrator.planning.cell_counts import count_cells
from orchestrator.progress.status_file import REMOTE_SECONDS, Status, last_run, read_status
from orchestrator.progress.view import LiveView
from orchestrator.store import Store
from orchestrator.util.console import plain_table, print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration

POLL_SECONDS = 1.0
"""Interval between two readings of a status file in a local store."""

PLAIN_SECONDS = 30.0
"""Least interval between two progress lines that :func:`watch` prints where there is no terminal."""

SHOWN_FAILURES = 10


def status_view(store: Store, grid: str, title: str, cell_ids: Collection[str]) -> RenderableType:
    """Return the progress of a grid, the state of its last run, and its recorded failures.

    ``grid`` is the grid's name or the path of its file.

    Damaged files of results are moved out of the way.
    """
    results, failed, damaged = store.read_outcomes(cell_ids)
    todo = len(cell_ids) - len(results) - sum(not failure.retryable for failure in failed)
    parts: list[RenderableType] = []
    status = last_run(store.files, grid)
    if status is not None and status.state in ("running", "silent", "died"):
        parts.append(run_view(status))
    else:
        counts = count_cells(len(cell_ids), len(results), todo, len(failed), damaged)
        parts += [Text(f"{Path(grid).stem}: {title}", style="bold"), Text(counts)]
        if status is not None:
            parts.append(Text(f"last run {status.headline(time.time())}", overflow="fold"))
            parts += [Text(status.shot.race)] if status.shot.race else []
    for failure in failed[:SHOWN_FAILURES]:
        parts.append(Text(f"failed: {failure.id}\n  {failure.error}\n  log: {failure.log}", style="red"))
    if len(failed) > SHOWN_FAILURES:
        parts.append(Text(f"... and {len(failed) - SHOWN_FAILURES} more failures"))
    if failed:
        parts.append(Text("--retry-failed runs them again"))
    return Group(*parts)


def run_view(status: Status) -> RenderableType:
    """Return the view that the terminal of the run shows, with the state of the run below the title."""
    return LiveView(f"{status.grid}: {status.title}", status.shot, status.at, status.headline(time.time()))


def watch(store: Store, grid: str, console: Console) -> None:
    """Show a run until it ends, or until Ctrl-C. Raises ``UserError`` when no run of the grid is under way."""
    status = last_run(store.files, grid)
    if status is None or status.state != "running":
        what = f"its last run {status.headline(time.time())}" if status else "it was never run there"
        what = f"grid {grid} is not being run in {store.url}: {what}"
        raise UserError(what, hint="leave out --watch to see the progress")
    live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext()
    printed, due = "", 0.0
    try:
        with live as view:
            while status.state == "running":
                now = time.monotonic()
                if view is not None:
                    view.update(run_view(status), refresh=True)
                elif status.shot.line != printed and now >= due:
                    printed, due = status.shot.line, now + PLAIN_SECONDS
                    print_line(printed, console)
                time.sleep(POLL_SECONDS if store.files.is_local else REMOTE_SECONDS / 2)
                status = last_run(store.files, grid) or status
    except KeyboardInterrupt:
        return
    print_line(status.headline(time.time()), console)
    print_line(status.shot.line, console)


def store_view(store: Store) -> RenderableType:
    """Return a table of all grids that were run in a store, with the state and the progress of the last run of each."""
    found = store.files.map(lambda grid: read_status(store.files, grid), store.files.records("status"))
    statuses = [status for status in found if status is not None]
    if not statuses:
        return Text(f"no grid was run in {store.url}")
    table = plain_table("grid", "state", "cells", "failed", "left", "written", right=("cells", "failed", "left"))
    now = time.time()
    for status in statuses:
        shot = status.shot
        table.add_row(
            status.grid,
            status.label,
            f"{shot.done}/{shot.total}",
            Text(str(shot.failed), style="red" if shot.failed else ""),
            human_duration(shot.eta) if status.state == "running" and shot.has_estimate else "-",
            f"{human_duration(max(0.0, now - status.at))} ago",
        )
    return table
