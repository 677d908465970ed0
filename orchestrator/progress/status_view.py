"""``status``: how far a grid is, seen from another shell, once or until its run ends; and what a store's runs did."""

from __future__ import annotations

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orchestrator.planning.plan import Plan
from orchestrator.planning.plan_view import counts_line
from orchestrator.progress.status_file import (
    REMOTE_SECONDS,
    WORDS,
    Place,
    Status,
    StoredStatus,
    read_status,
    read_statuses,
    status_place,
)
from orchestrator.progress.view import LiveView
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration

LOOK_SECONDS = 1.0
PLAIN_SECONDS = 30.0
SHOWN_FAILURES = 10


def status_view(plan: Plan, store: Store) -> RenderableType:
    """How far a grid is, what its run at work, or its last one, said, and the failures on record."""
    title = f"{plan.grid.name}: {plan.grid.title}"
    parts: list[RenderableType] = []
    said = read_status(status_place(store.files, plan.grid.name))
    if said is not None and said.state in ("running", "silent", "died"):
        parts.append(run_view(said, title))
    else:
        parts += [Text(title, style="bold"), Text(counts_line(plan))]
        if said is not None:
            parts.append(Text(f"last run {said.headline(time.time())}", overflow="fold"))
    for failure in plan.failed[:SHOWN_FAILURES]:
        parts.append(Text(f"failed: {failure.id}\n  {failure.error}\n  log: {failure.log}", style="red"))
    if len(plan.failed) > SHOWN_FAILURES:
        parts.append(Text(f"... and {len(plan.failed) - SHOWN_FAILURES} more failures"))
    if plan.failed:
        parts.append(Text("--retry-failed runs them again"))
    return Group(*parts)


def run_view(said: Status, title: str = "") -> RenderableType:
    """A run's own picture, below who runs it; the same that the run's terminal shows."""
    return LiveView(title or f"{said.grid}: {said.title}", said.shot, said.at, said.headline(time.time()))


def watch(store: Store, grid: str, console: Console) -> None:
    """Show a run's picture until it ends, or until Ctrl-C, which ends only the watching.

    Raises ``UserError`` when the grid is not being run.
    """
    path = status_place(store.files, grid)
    said = read_status(path)
    if said is None or not said.at_work:
        what = f"its last run {said.headline(time.time())}" if said else "it was never run there"
        raise UserError(
            f"grid {grid} is not being run in {store.url}: {what}", hint="without --watch, status says how far it is"
        )
    try:
        said = _live(path, said, console) if console.is_terminal else _plain(path, said, console)
    except KeyboardInterrupt:
        return
    console.print(said.headline(time.time()), highlight=False, soft_wrap=True, markup=False)
    console.print(said.shot.line, highlight=False, soft_wrap=True, markup=False)


def _live(path: Place, said: Status, console: Console) -> Status:
    with Live(run_view(said), console=console, auto_refresh=False, transient=True) as live:
        while said.at_work:
            time.sleep(_pause(path))
            said = read_status(path) or said
            live.update(run_view(said), refresh=True)
    return said


def _plain(path: Place, said: Status, console: Console) -> Status:
    printed, due = "", 0.0
    while said.at_work:
        now = time.monotonic()
        if said.shot.line != printed and now >= due:
            printed, due = said.shot.line, now + PLAIN_SECONDS
            console.print(printed, highlight=False, soft_wrap=True, markup=False)
        time.sleep(_pause(path))
        said = read_status(path) or said
    return said


def _pause(path: Place) -> float:
    """Seconds between two looks; no more often than a run says anything."""
    return REMOTE_SECONDS / 2 if isinstance(path, StoredStatus) else LOOK_SECONDS


def store_view(store: Store) -> RenderableType:
    """Every grid that was run in a store, and how far its last run came."""
    statuses = list(read_statuses(store.files))
    if not statuses:
        return Text(f"no grid was run in {store.url}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("grid", "state", "cells", "failed", "left", "said"):
        table.add_column(heading, justify="right" if heading in ("cells", "failed", "left") else "left")
    now = time.time()
    for said in statuses:
        shot = said.shot
        left = human_duration(shot.eta) if said.at_work and shot.left else "-"
        table.add_row(
            said.grid,
            WORDS[said.state],
            f"{shot.done}/{shot.total}",
            Text(str(shot.failed), style="red" if shot.failed else ""),
            left,
            f"{human_duration(max(0.0, now - said.at))} ago",
        )
    return table
