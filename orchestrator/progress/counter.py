"""Counts what happens while a grid runs, and estimates when it will be done.

The estimate simulates the waiting work on the slots: each piece takes the first slot that becomes free.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import NamedTuple

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import CostModel, Work, artifact_work
from orchestrator.planning.estimate import assumed_gflops
from orchestrator.planning.plan import Plan
from orchestrator.progress.snapshot import Failed, InProgress, Snapshot, Stage
from orchestrator.store import Store
from orchestrator.store.building import fraction_done
from orchestrator.util.machine import usable_processors

RATE_SECONDS = 300.0
"""Length of the period, up to now, over which the rate of ended cells is computed."""

SNAPSHOT_FAILURES = 2
"""A snapshot shows this many of the last failures."""

OVERDUE = 0.1
"""A piece of work that has run for t seconds is assumed to run for at least ``OVERDUE * t`` more seconds."""

_CELLS = ""
"""The key under which cells are counted. Artifacts are counted under their kind, the name of their store folder."""


class Prediction(NamedTuple):
    """The predicted seconds of some work, and the share of these seconds (0 to 1) that rests on measurements."""

    seconds: float
    measured: float


class _Pieces:
    """The cells of a run, or its artifacts. Each of them is called a piece.

    Attributes:
        work: the work of all pieces, by name.
        waiting: the work of the pieces that have not started, by name.
        started: the start times of the pieces that are running, by name.
        seconds: measured seconds of all pieces that have ended, in total.
    """

    def __init__(self) -> None:
        self.work: dict[str, Work] = {}
        self.waiting: dict[str, Work] = {}
        self.started: dict[str, float] = {}
        self.seconds = 0.0

    def add(self, work: Mapping[str, Work]) -> None:
        """Add pieces that have not started. ``work``: the work of each, by name."""
        self.work.update(work)
        self.waiting.update(work)


class ProgressCounter:
    """Counts the events of a run. Its methods may be called from any thread.

    Args:
        cells: the cells that will run, in that order.
        artifacts: the artifacts that will be built, in that order: address -> operations, in units of 10^9.
        costs: predicts durations; it learns from every finished cell and artifact.
        race: what a race has decided so far, in one line, and the number of cells that it leaves out.
        slots: the assumed number of artifacts or cells that run at a time. For cells it is used until the first cell
            has ended. From then on, the largest number of cells that ran at a time is used.
        gflops: speed that is assumed for work unlike anything measured, in units of 10^9 operations a second.
        build_progress: address of an artifact under way -> what its builder reported last (``3 of 8``), or nothing.
        log_of: id of a failed cell or artifact -> path of its log in the store, or nothing.

    Attributes:
        phase: what the run waits for now. It becomes empty when a cell starts or an artifact ends.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        artifacts: Mapping[str, float] | None = None,
        costs: CostModel | None = None,
        *,
        finished_before: int = 0,
        race: tuple[str, int] = ("", 0),
        slots: int = 1,
        gflops: float = 20.0,
        build_progress: Callable[[str], str] = lambda address: "",
        log_of: Callable[[str], str] = lambda failed: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.phase, self._race = "", race
        self._costs, self._slots, self._gflops = costs or CostModel(), slots, gflops
        self._finished_before = finished_before
        self._build_progress, self._log_of, self._clock = build_progress, log_of, clock
        self._lock = threading.RLock()
        self._cells, self._artifacts = _Pieces(), _Pieces()
        self._add(cells, artifacts or {})
        self._ended: Counter[tuple[str, str]] = Counter()  # by folder, and by kind of the last event
        self._reported: dict[str, str] = {}
        self._failures: list[Failed] = []
        self._start, self._first_cell, self._first_end = clock(), float("inf"), float("inf")
        self._ends: deque[float] = deque()
        self._most_running = 0

    @classmethod
    def of_plan(cls, plan: Plan, store: Store, settings: RunSettings, *, local: bool) -> ProgressCounter:
        """Return a counter for a run of the plan. A ``local`` run does one cell or artifact at a time."""

        def log_of(failed: str) -> str:
            failure = store.read_failure(failed)
            return failure.log if failure else ""

        return cls(
            plan.todo,
            plan.build_gflops,
            plan.costs,
            finished_before=len(plan.done),
            race=(plan.race_line, len(plan.left_out)),
            slots=1 if local else max(1, usable_processors() // settings.threads),
            gflops=assumed_gflops(settings.device, settings.threads),
            build_progress=store.build_progress,
            log_of=log_of,
        )

    def extend(self, plan: Plan, cells: Iterable[Cell], artifacts: Mapping[str, float] | None = None) -> None:
        """Add the cells and artifacts that a race runs next. ``plan``: with the decisions of the race so far."""
        with self._lock:
            self._race = plan.race_line, len(plan.left_out)
            self._add(cells, artifacts or {})

    def _add(self, cells: Iterable[Cell], artifacts: Mapping[str, float]) -> None:
        self._cells.add({cell.id: self._costs.work(cell) for cell in cells})
        self._artifacts.add({address: artifact_work(address, gflop) for address, gflop in artifacts.items()})

    def on_event(self, event: CellEvent | TaskEvent) -> None:
        """Count what happened to a cell or an artifact."""
        now, is_cell = self._clock(), isinstance(event, CellEvent)
        pieces, folder = (self._cells, _CELLS) if is_cell else (self._artifacts, _folder(event.key))
        with self._lock:
            if is_cell or event.kind != "started":  # a build task that has started may still wait for its worker
                self.phase = ""
            pieces.waiting.pop(event.key, None)
            if event.kind == "started":
                pieces.started[event.key] = now
                if is_cell:
                    self._first_cell = min(self._first_cell, now)
                    self._most_running = max(self._most_running, len(pieces.started))
                return
            start = pieces.started.pop(event.key, now)
            self._ended[folder, event.kind] += 1
            if is_cell:
                self._ends.append(now)
            if event.kind == "failed":
                self._failures.append(Failed(event.key, event.error, self._log_of(event.key) or event.log))
            if event.kind == "finished":
                # The cost model learns the time since the start event, because it includes the time lost between cells.
                # For a piece that started before the first cell finished, this time includes the start of workers too.
                # From such a piece the cost model learns only the seconds that the piece itself took.
                seconds = max(event.seconds, now - start) if start >= self._first_end else event.seconds
                self._first_end = min(self._first_end, now) if is_cell else self._first_end
                self._costs.learn(pieces.work[event.key], seconds)
                pieces.seconds += seconds

    def failures(self, first: int = 0) -> list[Failed]:
        """Return the failures of this run in their order, from number ``first`` on."""
        with self._lock:
            return self._failures[first:]

    def read_build_progress(self) -> None:
        """Read the progress of the artifacts that are being built. This may wait for a store; ``snapshot`` does not."""
        self._reported = {address: self._build_progress(address) for address in list(self._artifacts.started)}

    def snapshot(self) -> Snapshot:
        """Return counts and estimate at this moment; memory and GPUs are left empty."""
        now = self._clock()
        with self._lock:
            left, ended = self._left(now), self._ended
            return Snapshot(
                elapsed=now - self._start,
                stages=tuple(
                    Stage(kind, ended[kind, "finished"], ended[kind, "failed"] + ended[kind, "skipped"], count)
                    for kind, count in Counter(map(_folder, self._artifacts.work)).items()
                ),
                building=tuple(
                    InProgress(address, now - start, told=self._reported.get(address, ""))
                    for address, start in self._artifacts.started.items()
                ),
                before=self._finished_before,
                finished=ended[_CELLS, "finished"],
                failed=ended[_CELLS, "failed"],
                waiting=len(self._cells.waiting),
                running=tuple(
                    InProgress(cell, now - start, self._costs.predict(self._cells.work[cell]))
                    for cell, start in sorted(self._cells.started.items(), key=lambda item: item[1])
                ),
                rate=self._rate(now),
                eta=left.seconds,
                measured=left.measured,
                failures=tuple(self._failures[-SNAPSHOT_FAILURES:]),
                phase=self.phase,
                race=self._race[0],
                left_out=self._race[1],
            )

    def _left(self, now: float) -> Prediction:
        """Return the time until the artifacts are built, plus the time for the cells after them.

        ``measured`` is the smaller of two shares that rest on measurements: of the artifacts' time and of the cells'
        time. The share of the whole time could be close to 1 although no cell was measured, because the assumed speed
        may make the cells' time look much shorter than the artifacts' time.
        """

        @cache  # many cells are alike: they differ in their seed only
        def predict(work: Work) -> Prediction:
            seconds = self._costs.predict(work)
            return Prediction(work.gflop / self._gflops, 0.0) if seconds is None else Prediction(seconds, 1.0)

        def left_of(pieces: _Pieces, slots: int) -> Prediction:
            started = [(name, now - start, predict(pieces.work[name])) for name, start in pieces.started.items()]
            shares = {name: fraction_done(self._reported.get(name, "")) for name in pieces.started}
            running = [remaining(whole, age, shares[name]) for name, age, whole in started]
            slower = slowdown(pieces.seconds, ((age, whole.seconds) for _, age, whole in started))
            waiting = [predict(work) for work in pieces.waiting.values()]
            return eta([Prediction(slower * whole.seconds, whole.measured) for whole in waiting], running, slots)

        artifacts = left_of(self._artifacts, self._slots)
        cells = left_of(self._cells, self._most_running if self._first_end <= now else self._slots)
        return Prediction(artifacts.seconds + cells.seconds, min(artifacts.measured, cells.measured))

    def _rate(self, now: float) -> float:
        """Return how many cells ended per second, over the last :data:`RATE_SECONDS`."""
        while self._ends and self._ends[0] < now - RATE_SECONDS:
            self._ends.popleft()
        return len(self._ends) / min(RATE_SECONDS, now - self._first_cell) if now > self._first_cell else 0.0


def remaining(whole: Prediction, age: float, share_done: float | None = None) -> Prediction:
    """Return how many seconds a piece of work still needs after ``age`` seconds.

    If ``share_done`` is known and not 0, the piece is assumed to go on at its speed so far. If not, the answer is the
    largest of three numbers: what is left of the predicted time ``whole``; ``OVERDUE * age``; and, for a piece that has
    run longer than ``whole``, half of the time by which it is late.
    """
    if share_done:
        return Prediction(age * (1 - share_done) / share_done, 1.0)
    late = age - whole.seconds
    return Prediction(max(-late, OVERDUE * age, late / 2), whole.measured)


def slowdown(measured: float, running: Iterable[tuple[float, float]]) -> float:
    """Return the factor by which work takes longer than predicted, at least 1.

    Predictions learn only from pieces that have ended, and cells may run for minutes before the first one ends. So
    pieces under way raise the factor as soon as they have run longer than predicted.

    Args:
        measured: total seconds of the pieces that have ended. They count as predicted exactly, because the predictions
            have learned from them.
        running: age and predicted duration of each piece under way, in seconds.
    """
    pairs = [(age, whole) for age, whole in running if whole > 0]
    predicted = measured + sum(whole for _, whole in pairs)
    return (measured + sum(max(pair) for pair in pairs)) / predicted if predicted else 1.0


def eta(waiting: list[Prediction], running: list[Prediction], slots: int) -> Prediction:
    """Return the seconds of wall clock from now until all of the work is done.

    Args:
        waiting: predictions for the pieces that have not started, in the order in which they will start.
        running: the time that each of the running pieces still needs.
        slots: how many pieces can run at a time.
    """
    free = sorted(piece.seconds for piece in running)
    free = [0.0] * (max(slots, 1) - len(free)) + free
    for piece in waiting:
        heapq.heapreplace(free, free[0] + piece.seconds)
    pieces = [*waiting, *running]
    if total := sum(piece.seconds for piece in pieces):
        measured = sum(piece.seconds * piece.measured for piece in pieces) / total
    else:
        # There are no pieces, or all are predicted to take 0 seconds. The prediction is 0 for a piece that has no
        # counted operations and is unlike anything measured.
        measured = min((piece.measured for piece in pieces), default=1.0)
    return Prediction(max(free), measured)


def _folder(address: str) -> str:
    """Return the artifact's folder in the store: the first part of its address, which is its kind."""
    return address.partition("/")[0]
