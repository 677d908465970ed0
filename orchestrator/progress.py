"""What the terminal shows while a grid runs, and the status file another shell reads.

On a terminal a live view; elsewhere a plain line every few seconds. The counts, the last failures and the estimate
are the same in both and in the status file.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from orchestrator.cell import Cell
from orchestrator.eta import Durations, Kind, eta_seconds, in_words, kind_of
from orchestrator.events import CellEvent
from orchestrator.graph import TaskEvent
from orchestrator.results import Result

PLAIN_SECONDS = 5.0
STATUS_SECONDS = 2.0
STALE_SECONDS = 30.0
"""A status file that was not renewed for so long belongs to a run that is gone."""

SHOWN_FAILURES = 3
SHOWN_RUNNING = 6
HOW_FAR = ": "
"""Between an artifact's address and what its builder said last."""

MEASURED_ENOUGH = 4
"""So many cells must have finished before the pace is taken from them rather than from the number of places."""


@dataclass(frozen=True)
class Snapshot:
    """How far a run is.

    Attributes:
        built, artifacts: artifacts that exist by now, and all that were to be built.
        finished, failed, running, waiting: cells of this run.
        rate: cells ended per second since the first one began.
        eta: seconds to go for the cells, ``None`` if unknown.
        tasks_eta: seconds to go for the artifacts at their mean pace so far, ``None`` if unknown.
        now: what is under way, artifacts first, with how far those are where it is known.
        failures: the last ones: name, error, log.
    """

    built: int
    artifacts: int
    finished: int
    failed: int
    running: int
    waiting: int
    rate: float
    eta: float | None
    tasks_eta: float | None
    now: tuple[str, ...]
    failures: tuple[tuple[str, str, str], ...]

    @property
    def line(self) -> str:
        """All of it in one line."""
        parts = []
        if self.built < self.artifacts:
            left = f" (about {in_words(self.tasks_eta)} left)" if self.tasks_eta is not None else ""
            parts.append(f"artifacts {self.built}/{self.artifacts}{left}")
            parts += [name for name in self.now if HOW_FAR in name][:1]
        total = self.finished + self.failed + self.running + self.waiting
        parts.append(f"cells {self.finished}/{total}: {self.running} running, {self.waiting} waiting")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.finished:
            parts.append(_rate(self.rate))
        if self.eta is not None and self.running + self.waiting:
            parts.append(f"about {in_words(self.eta)} left")
        return ", ".join(parts)


class Progress:
    """Counts events, shows them, writes them down. A context manager; all methods may be called from any thread.

    Args:
        cells: the cells that are going to run.
        artifacts: addresses of the artifacts that are going to be built.
        measured: results of earlier runs, which the estimate starts from.
        places: how many cells can be under way at a time, as far as known.
        console: where to show it.
        status: the file for other shells, if there is to be one.
        how_far: address of an artifact under way -> how far its builder says it is, or nothing.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        artifacts: Iterable[str] = (),
        *,
        measured: Iterable[Result] = (),
        places: int = 1,
        console: Console | None = None,
        status: Path | None = None,
        how_far: Callable[[str], str] = lambda address: "",
    ) -> None:
        self._console = console or Console()
        self._status = status
        self._how_far = how_far
        self._lock = threading.RLock()
        self._waiting: Counter[Kind] = Counter(kind_of(cell) for cell in cells)
        self._tasks = len(set(artifacts))
        self._places = places
        self._durations = Durations()
        for result in measured:
            self._durations.add(kind_of(result.cell), result.timings.total)
        self._running: dict[str, tuple[Kind, float]] = {}
        self._building: dict[str, float] = {}
        self._built = self._finished = self._failed = 0
        self._seconds = 0.0
        self._failures: deque[tuple[str, str, str]] = deque(maxlen=SHOWN_FAILURES)
        self._begun = time.monotonic()
        self._first_cell: float | None = None
        self._first_task: float | None = None
        self._live: Live | None = None
        self._said = ""
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    # -- what happens ----------------------------------------------------------------------------------------------

    def on_event(self, event: CellEvent) -> None:
        """Count what happened to a cell."""
        now, cell = time.monotonic(), event.cell
        with self._lock:
            if event.kind == "started":
                self._first_cell = self._first_cell or now
                if cell.id not in self._running:
                    self._waiting[kind_of(cell)] -= 1
                self._running[cell.id] = (kind_of(cell), now)
                return
            if self._running.pop(cell.id, None) is None:
                self._waiting[kind_of(cell)] -= 1
            if event.kind == "finished":
                self._finished += 1
                self._seconds += event.seconds
                self._durations.add(kind_of(cell), event.seconds)
            else:
                self._failed += 1
                self._failures.append((cell.id, event.error, event.log))

    def on_task(self, event: TaskEvent) -> None:
        """Count what happened to an artifact."""
        with self._lock:
            if event.kind == "started":
                self._building[event.key] = time.monotonic()
                self._first_task = self._first_task or time.monotonic()
                return
            self._building.pop(event.key, None)
            if event.kind == "finished":
                self._built += 1
            elif event.kind == "failed":
                self._failures.append((event.key, event.error, event.log))

    def snapshot(self) -> Snapshot:
        """How far it is now."""
        now = time.monotonic()
        with self._lock:
            running = [(kind, now - begun) for kind, begun in self._running.values()]
            wall = now - self._first_cell if self._first_cell is not None else 0.0
            pace = float(max(self._places, len(running)))
            if self._finished >= MEASURED_ENOUGH and wall > 0:
                pace = (self._seconds + sum(age for _, age in running)) / wall
            return Snapshot(
                built=self._built,
                artifacts=self._tasks,
                finished=self._finished,
                failed=self._failed,
                running=len(running),
                waiting=self._waiting.total(),
                rate=(self._finished + self._failed) / wall if wall > 0 else 0.0,
                eta=eta_seconds(self._waiting, running, self._durations, pace=pace),
                tasks_eta=self._tasks_eta(now),
                now=(*map(self._under_way, self._building), *self._running),
                failures=tuple(self._failures),
            )

    def _under_way(self, address: str) -> str:
        told = self._how_far(address)
        return f"{address}{HOW_FAR}{told}" if told else address

    def _tasks_eta(self, now: float) -> float | None:
        left = self._tasks - self._built
        if self._first_task is None or self._built < MEASURED_ENOUGH or left <= 0:
            return None
        return (now - self._first_task) / self._built * left

    # -- where it is shown -----------------------------------------------------------------------------------------

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._view, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        self._write_status("running")
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ticker.join()
        if self._live is not None:
            self._live.stop()
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        self._say(self.summary(interrupted))
        self._write_status("stopped" if kind is not None else "ended")

    def summary(self, interrupted: bool = False) -> str:
        """The last line: what was done, and how to go on."""
        shot = self.snapshot()
        took = in_words(time.monotonic() - self._begun)
        parts = [f"{shot.finished} cells finished"]
        if shot.artifacts:
            parts.insert(0, f"{shot.built} of {shot.artifacts} artifacts built")
        if shot.failed:
            parts.append(f"{shot.failed} failed")
        if left := shot.running + shot.waiting:
            parts.append(f"{left} not done")
        line = f"{', '.join(parts)} in {took}"
        return f"stopped: {line}; the same command goes on from here" if interrupted else line

    def _tick(self) -> None:
        """Twice a second: the status file, and without a terminal a line when there is something new to say."""
        next_line = next_status = 0.0
        while not self._stop.wait(0.5):
            now = time.monotonic()
            if now >= next_status:
                next_status = now + STATUS_SECONDS
                self._write_status("running")
            if self._live is None and now >= next_line:
                next_line = now + PLAIN_SECONDS
                line = self.snapshot().line
                if line != self._said:
                    self._say(line)

    def _say(self, line: str) -> None:
        self._said = line
        self._console.print(line, highlight=False, soft_wrap=True)

    def _view(self) -> RenderableType:
        shot = self.snapshot()
        table = Table.grid(padding=(0, 1))
        if shot.artifacts:
            left = f"  {in_words(shot.tasks_eta)} left" if shot.tasks_eta is not None else ""
            table.add_row("artifacts", _bar(shot.built, shot.artifacts), f"{shot.built}/{shot.artifacts}{left}")
        total = shot.finished + shot.failed + shot.running + shot.waiting
        table.add_row("cells", _bar(shot.finished, total), f"{shot.finished}/{total}")
        words = f"{shot.running} running, {shot.waiting} waiting, {shot.failed} failed"
        if shot.finished:
            words += f", {_rate(shot.rate)}"
        if shot.running + shot.waiting:
            words += f", {in_words(shot.eta)} left" if shot.eta is not None else ""
        parts: list[RenderableType] = [table, Text(words)]
        parts += [
            Text(f"  {name}", style="dim", no_wrap=True, overflow="ellipsis") for name in shot.now[:SHOWN_RUNNING]
        ]
        if len(shot.now) > SHOWN_RUNNING:
            parts.append(Text(f"  and {len(shot.now) - SHOWN_RUNNING} more", style="dim"))
        for name, error, log in shot.failures:
            parts.append(Text(f"failed: {name}: {error}" + (f"\n  log: {log}" if log else ""), style="red"))
        return Group(*parts)

    def _write_status(self, state: str) -> None:
        if self._status is None:
            return
        shot = self.snapshot()
        body = {"state": state, "pid": os.getpid(), "at": time.time(), "line": shot.line, **vars(shot)}
        temporary = self._status.with_name(f".{self._status.name}.{os.getpid()}")
        with contextlib.suppress(OSError):  # a full disk must not end a run over its status file
            self._status.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(body, indent=1))
            temporary.replace(self._status)


def read_status(path: Path | None) -> str | None:
    """How far the run that writes this file is, in one line; ``None`` when none is at work."""
    if path is None:
        return None
    try:
        body = json.loads(path.read_text())
        if body["state"] != "running" or time.time() - body["at"] > STALE_SECONDS:
            return None
        return f"running as process {body['pid']}: {body['line']}"
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=max(total, 1), completed=done, width=40)


def _rate(per_second: float) -> str:
    return f"{per_second:.1f} cells/s" if per_second >= 1 else f"{60 * per_second:.1f} cells/min"
