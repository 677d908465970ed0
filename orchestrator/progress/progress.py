"""Counts what happens while a grid runs, shows it, and writes it down for other shells.

On a terminal a live view; elsewhere a plain line now and then, and one for every failure, without control characters.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.progress.eta import Durations, Eta, Job, Kind, Waiting, eta, kind_of
from orchestrator.progress.snapshot import Failed, Snapshot, Stage, UnderWay
from orchestrator.progress.status_file import State, StatusFile
from orchestrator.progress.view import LiveView
from orchestrator.store.build_progress import fraction_done
from orchestrator.store.results import Result
from orchestrator.util.machine import Gpu, Memory, local_gpus, process_tree_memory
from orchestrator.util.units import human_duration

TICK_SECONDS = 0.5
STATUS_SECONDS = 2.0
MACHINE_SECONDS = 5.0
REFRESHES = 2
"""Of the live view, a second."""

FIRST_LINES, LATER_LINES = 5.0, 60.0
"""Seconds between plain lines: the shorter at first, the longer when a run has gone on for twenty times as long."""

RATE_SECONDS = 300.0
SHOWN_FAILURES = 2
"""In the live view."""

LAST_FAILURES = 5
"""So many are named when the live view has gone."""

STOPPING = "stopping: what is under way is given up, what has finished is kept; Ctrl-C again leaves at once"

MEASURED_ENOUGH = 4
"""So many cells must have finished before the time lost between cells is reckoned with."""


class Progress:
    """Counts events. A context manager that shows them; all methods may be called from any thread.

    Args:
        cells: the cells that are going to run, in that order.
        artifacts: address -> 10^9 operations of the artifacts that are going to be built, in that order.
        size_of: 10^9 operations of a cell, 0 where next to none are counted.
        measured: results of earlier runs of the grid, which the estimate starts from.
        places: how many cells can be under way at a time, as far as known.
        gflops: 10^9 operations a second assumed for what is unlike anything measured.
        title: stands above the live view.
        console: where to show it.
        status: where to say it for other shells.
        build_progress: address of an artifact under way -> how far its builder says it is, or nothing.
        log_of: id of a failed cell or artifact -> path of its log in the store, or nothing.
        resume: the command that goes on from here, for those who stop it.
        clock: seconds, for everything but the time of day.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        artifacts: Mapping[str, float] | None = None,
        *,
        size_of: Callable[[Cell], float] = lambda cell: 0.0,
        measured: Iterable[Result] = (),
        places: int = 1,
        gflops: float = 20.0,
        title: str = "",
        console: Console | None = None,
        status: StatusFile | None = None,
        build_progress: Callable[[str], str] = lambda address: "",
        log_of: Callable[[str], str] = lambda failed: "",
        resume: str = "the same command",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console()
        self._status = status or StatusFile(None)
        self._build_progress, self._log_of, self._clock = build_progress, log_of, clock
        self._title, self._resume = title, resume
        self._lock = threading.RLock()
        self._jobs = {cell.id: Job(kind_of(cell), size_of(cell)) for cell in cells}
        self._waiting = Waiting(self._jobs)
        self._tasks = {address: Job(_task_kind(address), size) for address, size in (artifacts or {}).items()}
        self._open_tasks = dict(self._tasks)
        self._places = max(1, places)
        self._durations, self._task_durations = Durations(gflops), Durations(gflops)
        self._before = 0
        for result in measured:
            self._before += 1
            self._durations.add(Job(kind_of(result.cell), size_of(result.cell)), result.timings.total)
        self._running: dict[str, float] = {}
        self._building: dict[str, float] = {}
        self._built: Counter[str] = Counter()
        self._broken: Counter[str] = Counter()
        self._finished = self._failed = 0
        self._ends: deque[float] = deque()
        self._pace = _Pace()
        self._failures: deque[Failed] = deque(maxlen=SHOWN_FAILURES)
        self._unsaid: list[Failed] = []
        self._memory: Memory | None = None
        self._gpus: tuple[Gpu, ...] | None = None
        self._begun = clock()
        self._first_cell: float | None = None
        self._live: Live | None = None
        self._said = ""
        self._stopping = False
        self._stop = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    # -- what happens ----------------------------------------------------------------------------------------------

    def set_places(self, places: int) -> None:
        """Say how many cells can be under way at a time, once that is known."""
        with self._lock:
            self._places = max(1, places)

    def stopping(self) -> None:
        """Show that the run is being stopped. May be called from a signal's handler: it takes no lock."""
        self._stopping = True

    def on_event(self, event: CellEvent) -> None:
        """Count what happened to a cell."""
        now, name = self._clock(), event.cell.id
        with self._lock:
            self._pace.until(now, self._wanted)
            self._waiting.begin(name)
            if event.kind == "started":
                self._first_cell = now if self._first_cell is None else self._first_cell
                self._running[name] = now
                return
            self._running.pop(name, None)
            self._ends.append(now)
            if event.kind == "finished":
                self._finished += 1
                self._pace.finished(now, event.seconds)
                self._durations.add(self._jobs[name], event.seconds)
            else:
                self._failed += 1
                self._fail(name, event.error, event.log)

    def on_task(self, event: TaskEvent) -> None:
        """Count what happened to an artifact."""
        with self._lock:
            if event.kind == "started":
                self._building[event.key] = self._clock()
                return
            self._building.pop(event.key, None)
            job = self._open_tasks.pop(event.key, None)
            if event.kind == "finished":
                self._built[_stage(event.key)] += 1
                if job is not None:
                    self._task_durations.add(job, event.seconds)
                return
            self._broken[_stage(event.key)] += 1
            if event.kind == "failed":
                self._fail(event.key, event.error, event.log)

    def _fail(self, name: str, error: str, log: str) -> None:
        failure = Failed(name, error, self._log_of(name) or log)
        self._failures.append(failure)
        self._unsaid.append(failure)

    # -- how far it is ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """How far it is now."""
        now = self._clock()
        with self._lock:
            told = {address: self._build_progress(address) for address in self._building}
            remaining = self._eta(now, told)
            totals = Counter(_stage(address) for address in self._tasks)
            running = sorted(self._running.items(), key=lambda item: item[1])
            return Snapshot(
                elapsed=now - self._begun,
                stages=tuple(
                    Stage(name, self._built[name], self._broken[name], total) for name, total in totals.items()
                ),
                building=tuple(
                    UnderWay(address, now - begun, told=told[address]) for address, begun in self._building.items()
                ),
                before=self._before,
                finished=self._finished,
                failed=self._failed,
                waiting=len(self._waiting),
                running=tuple(UnderWay(name, now - begun, self._usual(name)) for name, begun in running),
                rate=self._rate(now),
                eta=remaining.seconds,
                measured=remaining.measured,
                failures=tuple(self._failures),
                memory=self._memory,
                gpus=self._gpus or (),
            )

    @property
    def _wanted(self) -> int:
        """How many places there are cells for."""
        return min(self._places, len(self._running) + len(self._waiting))

    def _usual(self, name: str) -> float | None:
        expected = self._durations.expected(self._jobs[name])
        return expected.seconds if expected.measured else None

    def _eta(self, now: float, told: Mapping[str, str]) -> Eta:
        """Until the artifacts are there, then until the cells are done."""
        cells = eta(
            self._waiting,
            [(self._jobs[name], now - begun, None) for name, begun in self._running.items()],
            self._durations,
            places=self._places,
            drag=self._pace.drag(now, self._wanted, self._running.values()),
        )
        if not self._open_tasks:
            return cells
        tasks = eta(
            Waiting({name: job for name, job in self._open_tasks.items() if name not in self._building}),
            [
                (self._tasks[address], now - begun, fraction_done(told[address]))
                for address, begun in self._building.items()
                if address in self._tasks
            ],
            self._task_durations,
            places=self._places,
        )
        both = cells.seconds + tasks.seconds
        share = (cells.seconds * cells.measured + tasks.seconds * tasks.measured) / both if both else 1.0
        return Eta(both, share)

    def _rate(self, now: float) -> float:
        """Cells ended per second over the last minutes."""
        while self._ends and self._ends[0] < now - RATE_SECONDS:
            self._ends.popleft()
        if self._first_cell is None or now <= self._first_cell:
            return 0.0
        return len(self._ends) / min(RATE_SECONDS, now - self._first_cell)

    # -- where it is shown -----------------------------------------------------------------------------------------

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=REFRESHES, transient=True
            )
            self._live.start()
        self._status.write("running", self.snapshot())
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._ticker.join()
        if self._live is not None:
            self._live.stop()
        state: State = "ended"
        if kind is not None:
            state = "stopped" if issubclass(kind, KeyboardInterrupt) else "failed"
        self._status.write(state, self.snapshot())
        if self._live is not None:
            self._unsaid = self._unsaid[-LAST_FAILURES:]  # those on record are all in the report
        self._say_failures()
        self._say(self.summary(interrupted=state == "stopped"))

    def summary(self, interrupted: bool = False) -> str:
        """The last line: what was done, and how to go on."""
        shot = self.snapshot()
        parts = [f"{shot.finished} cells finished"]
        if shot.artifacts:
            parts.insert(0, f"{shot.built} of {shot.artifacts} artifacts built")
        if shot.failed:
            parts.append(f"{shot.failed} failed")
        if left := len(shot.running) + shot.waiting:
            parts.append(f"{left} not done")
        line = f"{', '.join(parts)} in {human_duration(shot.elapsed)}"
        return f"stopped: {line}; go on with: {self._resume}" if interrupted else line

    def _tick(self) -> None:
        """Twice a second: look whether it is time for the status file, for memory and GPUs, for a plain line."""
        due = dict.fromkeys(("status", "machine", "line"), 0.0)
        begun = time.monotonic()
        while not self._stop.wait(TICK_SECONDS):
            now = time.monotonic()
            if now >= due["machine"]:
                due["machine"] = now + MACHINE_SECONDS
                self._look_at_machine()
            if now >= due["status"]:
                due["status"] = now + STATUS_SECONDS
                self._status.write("running", self.snapshot())
            if self._live is not None:
                continue
            self._say_failures()
            if self._stopping:
                if self._said != STOPPING:
                    self._say(STOPPING)
                continue
            if now >= due["line"]:
                due["line"] = now + min(max(FIRST_LINES, (now - begun) / 20), LATER_LINES)
                line = self.snapshot().line
                if line != self._said:
                    self._say(line)

    def _look_at_machine(self) -> None:
        with suppress(Exception):  # what the system does not tell is not shown
            memory = process_tree_memory()
            found = local_gpus() if self._gpus != () else ()  # a machine without any is asked once
            with self._lock:
                self._memory, self._gpus = memory, found

    def _say_failures(self) -> None:
        with self._lock:
            unsaid, self._unsaid = self._unsaid, []
        for failure in unsaid:
            self._say(f"failed: {failure.name}: {failure.error}" + (f" (log: {failure.log})" if failure.log else ""))

    def _say(self, line: str) -> None:
        self._said = line
        self._console.print(line, highlight=False, soft_wrap=True, markup=False)

    def _view(self) -> RenderableType:
        return LiveView(self._title, self.snapshot(), time.time(), STOPPING if self._stopping else "")


class _Pace:
    """Time lost between cells: what the places could have done with their time, and what of it cells took.

    Counted from the first finished cell on; before that, workers start and load what they keep.
    """

    def __init__(self) -> None:
        self._since = self._until = 0.0
        self._offered = self._worked = 0.0
        self._count = 0

    def until(self, now: float, wanted: int) -> None:
        """Until now, so many places could have been at work."""
        if self._count:
            self._offered += wanted * (now - self._until)
            self._until = now

    def finished(self, now: float, seconds: float) -> None:
        """A cell took so long; :meth:`until` is told first."""
        if self._count:
            self._worked += min(seconds, now - self._since)
        else:
            self._since = self._until = now
        self._count += 1

    def drag(self, now: float, wanted: int, begun: Iterable[float]) -> float:
        """Wall clock per second of work at a place, at least 1, given when the cells under way were begun."""
        if self._count < MEASURED_ENOUGH:
            return 1.0
        self.until(now, wanted)
        worked = self._worked + sum(now - max(start, self._since) for start in begun)
        return max(1.0, self._offered / worked) if worked else 1.0


def _stage(address: str) -> str:
    """What artifacts are counted by: the folder they are in."""
    return address.partition("/")[0]


def _task_kind(address: str) -> Kind:
    return Kind("artifact", "", _stage(address), 0)
