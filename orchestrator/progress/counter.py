"""Counts what happens while a grid runs and estimates when it will be done."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.planning.cost import CostModel, Work, artifact_work
from orchestrator.progress.eta import Prediction, eta, remaining
from orchestrator.progress.snapshot import Failed, InProgress, Snapshot, Stage
from orchestrator.store.building import fraction_done

RATE_SECONDS = 300.0
"""The rate counts the cells that ended in this many of the last seconds."""

SNAPSHOT_FAILURES = 2
"""A snapshot shows this many of the last failures."""

OVERHEAD_CELLS = 4
"""This many cells must have finished before the time lost between cells enters the estimate."""


class ProgressCounter:
    """Counts the events of a run. Its methods may be called from any thread.

    Args:
        cells: the cells that will run, in that order.
        artifacts: address -> 10^9 operations of the artifacts that will be built, in that order.
        costs: predicts durations; it learns from every finished cell and artifact.
        slots: how many cells can run at a time, as far as known.
        gflops: 10^9 operations a second assumed for work that is unlike anything measured.
        build_progress: address of an artifact under way -> what its builder reported last (``3 of 8``), or nothing.
        log_of: id of a failed cell or artifact -> path of its log in the store, or nothing.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        artifacts: Mapping[str, float] | None = None,
        costs: CostModel | None = None,
        *,
        finished_before: int = 0,
        slots: int = 1,
        gflops: float = 20.0,
        build_progress: Callable[[str], str] = lambda address: "",
        log_of: Callable[[str], str] = lambda failed: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._costs = costs or CostModel()
        self._build_progress, self._log_of, self._clock = build_progress, log_of, clock
        self._slots, self._gflops = max(1, slots), gflops
        self._lock = threading.RLock()
        self._cells = {cell.id: self._costs.work(cell) for cell in cells}
        self._artifacts = {address: artifact_work(address, gflop) for address, gflop in (artifacts or {}).items()}
        self._waiting, self._unbuilt = dict(self._cells), dict(self._artifacts)
        self._running: dict[str, float] = {}
        self._building: dict[str, float] = {}
        self._reported: dict[str, str] = {}
        self._stages = {
            name: Stage(name, 0, 0, count) for name, count in Counter(map(_folder, self._artifacts)).items()
        }
        self._finished_before = finished_before
        self._finished = self._failed = 0
        self._ends: deque[float] = deque()
        self._overhead, self._used, self._first_end = 1.0, 0.0, 0.0
        self._failures: list[Failed] = []
        self._phase = ""
        self._start = clock()
        self._first_cell: float | None = None

    def set_slots(self, slots: int) -> None:
        """Set how many cells can run at a time, once that is known."""
        self._slots = max(1, slots)

    def set_phase(self, phase: str) -> None:
        """Set what the run waits for now. It counts until a cell starts or an artifact ends."""
        self._phase = phase

    def on_event(self, event: CellEvent) -> None:
        """Count what happened to a cell."""
        now, name = self._clock(), event.cell.id
        with self._lock:
            self._phase = ""
            self._waiting.pop(name, None)
            if event.kind == "started":
                self._first_cell = now if self._first_cell is None else self._first_cell
                self._running[name] = now
                return
            self._running.pop(name, None)
            self._ends.append(now)
            if event.kind == "finished":
                self._finished += 1
                self._measure_overhead(now, event.seconds)
                self._costs.learn_seconds(self._cells[name], event.seconds)
            else:
                self._failed += 1
                self._fail(name, event.error, event.log)

    def on_task(self, event: TaskEvent) -> None:
        """Count what happened to an artifact."""
        with self._lock:
            if event.kind == "started":
                self._building[event.key] = self._clock()
                return
            self._phase = ""
            self._building.pop(event.key, None)
            work, stage = self._unbuilt.pop(event.key), self._stages[_folder(event.key)]
            if event.kind == "finished":
                self._stages[stage.name] = replace(stage, built=stage.built + 1)
                self._costs.learn_seconds(work, event.seconds)
            else:
                self._stages[stage.name] = replace(stage, failed=stage.failed + 1)
            if event.kind == "failed":
                self._fail(event.key, event.error, event.log)

    def _fail(self, name: str, error: str, log: str) -> None:
        self._failures.append(Failed(name, error, self._log_of(name) or log))

    def failures(self, first: int = 0) -> list[Failed]:
        """Return the failures of this run in their order, from number ``first`` on."""
        with self._lock:
            return self._failures[first:]

    def read_build_progress(self) -> None:
        """Ask how far the artifacts under way are. It may wait for a remote store; snapshots never do."""
        self._reported = {address: self._build_progress(address) for address in list(self._building)}

    def snapshot(self) -> Snapshot:
        """Return counts and estimate at this moment; memory and GPUs are left empty."""
        now = self._clock()
        with self._lock:
            left = self._eta(now)
            running = sorted(self._running.items(), key=lambda item: item[1])
            return Snapshot(
                elapsed=now - self._start,
                stages=tuple(self._stages.values()),
                building=tuple(
                    InProgress(address, now - start, told=self._reported.get(address, ""))
                    for address, start in self._building.items()
                ),
                before=self._finished_before,
                finished=self._finished,
                failed=self._failed,
                waiting=len(self._waiting),
                running=tuple(
                    InProgress(name, now - start, self._costs.seconds(self._cells[name])) for name, start in running
                ),
                rate=self._rate(now),
                eta=left.seconds,
                measured=left.measured,
                failures=tuple(self._failures[-SNAPSHOT_FAILURES:]),
                phase=self._phase,
            )

    def _measure_overhead(self, now: float, seconds: float) -> None:
        """Measure the time lost between cells: the time there were slots for, over the time that cells used.

        Counts from the first finished cell on; before that, workers start and load their backbones. At the end, when no
        cell waits, slots are idle for another reason.
        """
        if self._finished == 1:
            self._first_end = now
            return
        self._used += min(seconds, now - self._first_end)
        under_way = sum(now - max(start, self._first_end) for start in self._running.values())
        if self._waiting and self._finished >= OVERHEAD_CELLS and self._used + under_way:
            self._overhead = max(1.0, self._slots * (now - self._first_end) / (self._used + under_way))

    def _predict(self, work: Work) -> Prediction:
        seconds = self._costs.seconds(work)
        return Prediction(work.gflop / self._gflops, 0.0) if seconds is None else Prediction(seconds, 1.0)

    def _eta(self, now: float) -> Prediction:
        """Time until the artifacts are built, plus time for the cells after them.

        It is as measured as the less measured of the two: the assumed speed makes unmeasured cells look short.
        """
        predict = cache(self._predict)  # many cells are alike: they differ in their seed only
        artifacts = eta(
            [predict(work) for address, work in self._unbuilt.items() if address not in self._building],
            [
                remaining(
                    predict(self._artifacts[address]), now - start, fraction_done(self._reported.get(address, ""))
                )
                for address, start in self._building.items()
            ],
            slots=self._slots,
        )
        cells = eta(
            [predict(work) for work in self._waiting.values()],
            [remaining(predict(self._cells[name]), now - start) for name, start in self._running.items()],
            slots=self._slots,
            overhead=self._overhead,
        )
        return Prediction(artifacts.seconds + cells.seconds, min(artifacts.measured, cells.measured))

    def _rate(self, now: float) -> float:
        """Cells ended per second, over the last :data:`RATE_SECONDS`."""
        while self._ends and self._ends[0] < now - RATE_SECONDS:
            self._ends.popleft()
        if self._first_cell is None or now <= self._first_cell:
            return 0.0
        return len(self._ends) / min(RATE_SECONDS, now - self._first_cell)


def _folder(address: str) -> str:
    """Return the folder of an artifact, which is its kind."""
    return address.partition("/")[0]
