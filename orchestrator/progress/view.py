"""The views of a run: the live view of ``grid`` in a terminal of at least 60 columns, and the output of ``status``."""

import time
from collections.abc import Collection, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.planning.cell_counts import count_cells
from orchestrator.progress.snapshot import InProgress, Snapshot
from orchestrator.progress.status_file import REMOTE_SECONDS, Status, last_run, read_status
from orchestrator.store import Store
from orchestrator.util.console import plain_table, print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_duration

SHOWN_RUNNING = 16
FEWEST_RUNNING = 2
POLL_SECONDS = 1.0
"""Interval between two readings of a status file in a local store."""

PLAIN_SECONDS = 30.0
"""Least interval between two progress lines that :func:`watch` prints where there is no terminal."""

SHOWN_FAILURES = 10


@dataclass(frozen=True)
class LiveView:
    """The view of a snapshot, taken at ``now`` (seconds since the epoch), below a title and perhaps a note."""

    title: str
    shot: Snapshot
    now: float
    note: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fixed = Group(*self._head(), *self._cells())
        failures = list(self._failures())
        above = len(console.render_lines(fixed, options)) + len(console.render_lines(Group(*failures), options))
        # The last line stays free for the cursor. A low terminal shows fewer of the running cells and artifacts.
        lines = max(FEWEST_RUNNING, min(SHOWN_RUNNING, console.size.height - above - 3))
        yield fixed
        if running := (*self.shot.building, *self.shot.running):
            yield in_progress_table(running, lines)
        yield from failures

    def _head(self) -> Iterator[RenderableType]:
        shot = self.shot
        title = Table.grid(expand=True)
        title.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        title.add_column(justify="right", no_wrap=True)
        title.add_row(Text(self.title, style="bold"), Text(human_duration(shot.elapsed), style="dim"))
        yield title
        if self.note:
            yield Text(self.note, style="yellow")
        bars = Table.grid(padding=(0, 1))
        bars.add_column(no_wrap=True, min_width=9)
        bars.add_column(width=24)
        bars.add_column(justify="right", no_wrap=True)
        bars.add_column(no_wrap=True)
        rows = [(stage.name, stage.built, stage.total, stage.failed) for stage in shot.stages]
        for name, done, total, failed in (*rows, ("cells", shot.done, shot.total, 0)):
            bar = ProgressBar(total=max(total, 1), completed=done, width=24)
            bars.add_row(name, bar, f"{done}/{total}", Text(f"{failed} failed", style="red") if failed else "")
        yield bars

    def _cells(self) -> Iterator[RenderableType]:
        shot = self.shot
        counts = Text(f"{shot.done} done")
        if shot.before:
            counts.append(f" ({shot.before} in earlier runs)")
        counts.append(f", {len(shot.running)} running, {shot.waiting} waiting, ")
        counts.append(f"{shot.failed} failed", style="red" if shot.failed else "")
        yield counts
        if shot.race:
            yield Text(shot.race)
        if shot.left:
            rate = f"{shot.rate_text}, " if shot.rate else ""
            clock = "%H:%M" if shot.eta < 24 * 3600 else "%a %d %b, %H:%M"
            until = time.strftime(f", until {clock}", time.localtime(self.now + shot.eta)) if shot.has_estimate else ""
            yield Text(f"{rate}{shot.phase or shot.eta_text + until}")
        if shot.memory is not None:
            yield Text(f"memory {shot.memory.summary}", style="dim")
        for gpu in shot.gpus:
            yield Text(gpu.summary, style="dim")

    def _failures(self) -> Iterator[RenderableType]:
        for failure in self.shot.failures:
            yield Text(f"failed: {failure.name}", style="red", no_wrap=True, overflow="ellipsis")
            yield Text(f"  {failure.error}", style="red", no_wrap=True, overflow="ellipsis")
            if failure.log:
                yield Text(failure.log, overflow="fold", no_wrap=False)  # never cut, so that it can be copied


def in_progress_table(items: tuple[InProgress, ...], lines: int) -> RenderableType:
    """Return a table of running cells or artifacts with their progress and age, in at most ``lines`` lines."""
    shown = items if len(items) <= lines else items[: lines - 1]
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis", style="dim")
    table.add_column(justify="right", no_wrap=True)
    for item in shown:
        age = human_duration(item.seconds)
        if item.told:
            age = f"{item.told}  {age}"
        elif item.expected is not None:
            age = f"{age} of about {human_duration(item.expected)}"
        table.add_row(f"  {item.name}", age)
    if len(shown) < len(items):
        table.add_row(f"  and {len(items) - len(shown)} more", "")
    return table


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
        left_out = min(status.shot.left_out, todo) if status else 0
        counts = count_cells(len(cell_ids), len(results), todo - left_out, len(failed), damaged, left_out)
        parts += [Text(f"{Path(grid).stem}: {title}", style="bold"), Text(counts)]
        if status is not None:
            parts.append(Text(f"last run {status.headline(time.time())}"))
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
    if not (statuses := [status for status in found if status is not None]):
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
