"""The live view of a run in a terminal of at least 60 columns, shown by the commands ``grid`` and ``status``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.progress.snapshot import InProgress, Snapshot
from orchestrator.util.units import human_duration

SHOWN_RUNNING = 16
FEWEST_RUNNING = 2


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
            counts.append(f" ({shot.before} of them before)")
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
                yield Text(failure.log, overflow="fold")  # the path is never cut, so that it can be copied


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
