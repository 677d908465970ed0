"""Writes finished cells to MLflow in a background thread while a grid runs. Errors of MLflow never end the grid."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from orchestrator.store.results import Result
from orchestrator.tracking.errors import TrackingProblem, classify_tracking_error
from orchestrator.tracking.runs import Describe
from orchestrator.tracking.tracker import Tracker

CLOSE_SECONDS = 30.0
"""How many seconds :meth:`BackgroundTracker.close` waits, at most, until the thread has written the queue. An attempt
to reach a dead server fails sooner."""

LEFT_TO_SYNC = 200
"""The largest number of runs that the thread still writes after ``close`` was called. If the queue is longer, only its
last runs are written. ``sync`` writes the others later, and shows its progress."""


class BackgroundTracker:
    """A queue of finished cells and the thread that writes them to a tracker.

    If MLflow cannot be reached, the grid goes on, and the thread tries again after pauses that double up to a minute.
    The queue holds ids only: the thread reads a result when it writes the run. ``sync`` later writes the runs that are
    left in the queue at the end, and those that MLflow did not accept.

    Args:
        open_tracker: makes the tracker. The thread calls it, because importing MLflow and creating a database take
            seconds.
        describe: gives the labels of a result's run.
        read: reads the result of a cell, by the cell's id.
        say: receives one line when runs cannot be written, one when MLflow can be reached again, and one at the end of
            the ``with`` block if runs could not be written, or not in time.
        pauses: seconds of the first and of the longest pause.
    """

    def __init__(
        self,
        open_tracker: Callable[[], Tracker],
        describe: Describe,
        read: Callable[[str], Result],
        *,
        say: Callable[[str], None] = lambda line: None,
        pauses: tuple[float, float] = (1.0, 60.0),
    ) -> None:
        self._open_tracker, self._describe, self._read, self._say = open_tracker, describe, read, say
        self._tracker: Tracker | None = None
        self._queue: SimpleQueue[str | None] = SimpleQueue()
        self._problem: TrackingProblem | None = None
        self._unwritten = 0
        self._closing, self._given_up, self._pauses = threading.Event(), threading.Event(), pauses
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, cell_id: str) -> None:
        """Queue a finished cell. Returns at once."""
        self._queue.put(cell_id)

    @property
    def pending(self) -> int:
        """The number of queued runs, without the run that is being written. The end mark from ``close`` counts too."""
        return self._queue.qsize()

    def close(self, timeout: float = CLOSE_SECONDS) -> str:
        """Let the thread write the queued runs and end, and wait for it at most ``timeout`` seconds.

        Runs that the thread has not begun by then are left to ``sync``, because MLflow would have a run twice if both
        wrote it. If the thread is in the middle of a run, this method waits up to ``timeout`` seconds more.

        If MLflow cannot be reached, the thread tries once more. Returns one line if errors or the time limit kept runs
        from being written, and ``""`` otherwise. A long queue is left to ``sync``, which is no error.
        """
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            left = self.pending
            self._given_up.set()
            self._thread.join(timeout)
            left = left if self._thread.is_alive() else self._unwritten  # the run in progress may be written by now
            return f"{left} runs were not tracked in time" if left else ""
        if self._unwritten and self._problem is not None:
            return f"{self._unwritten} runs could not be tracked: {self._problem.message}"
        return ""

    def __enter__(self) -> BackgroundTracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        problem = self.close(CLOSE_SECONDS if kind is None else 10.0)
        if problem and kind is None:
            self._say(f"{problem}; the sync at the end of the run, or the `sync` command, writes them")

    def _work(self) -> None:
        while (cell_id := self._queue.get()) is not None:
            refused = self._problem is not None and self._problem.kind == "refused"
            ending = self._closing.is_set() and (self._problem is not None or self.pending > LEFT_TO_SYNC)
            if refused or ending or not self._write(cell_id):  # `sync` writes what is left
                self._unwritten += 1

    def _write(self, cell_id: str) -> bool:
        """Write one run, and repeat this while MLflow cannot be reached. Returns whether the run was written."""
        pause, longest = self._pauses
        while True:
            before = self._problem
            try:
                self._tracker = self._tracker or self._open_tracker()
                result = self._read(cell_id)
                if self._given_up.is_set():
                    return False
                self._tracker.log_result(result, self._describe(result))
            except Exception as error:
                self._tracker = None
                self._problem = classify_tracking_error(error)
                if (before is None or before.kind != self._problem.kind) and not self._closing.is_set():
                    self._say(f"{self._problem.message}; the grid goes on")
                if self._problem.kind != "unreachable" or self._closing.is_set():
                    return False
                self._closing.wait(pause)
                pause = min(2 * pause, longest)
            else:
                self._problem = None
                if before is not None and before.kind == "unreachable":
                    self._say(f"the tracking store can be written to again; {self.pending} runs are queued")
                return True
