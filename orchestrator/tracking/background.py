"""Writes finished cells to MLflow in a background thread while a grid runs; its errors never end the run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from orchestrator.store.results import Result
from orchestrator.tracking.errors import TrackingProblem, classify_tracking_error
from orchestrator.tracking.runs import Describe
from orchestrator.tracking.tracker import Tracker

CLOSE_SECONDS = 30.0
"""How long closing waits for the queue. A busy moment's runs take less, and MLflow gives up on a dead server sooner."""

LEFT_TO_SYNC = 200
"""If more runs are queued at the end, the thread leaves them to ``sync``, which shows its progress."""


class BackgroundTracker:
    """A queue of finished cells and the thread that writes them to a tracker.

    A store that cannot be written to neither stops the grid nor loses a run: a failed write is tried again after
    pauses that double up to a minute. The queue holds ids only; a result is read from the store when it is written.
    A run that cannot be written by itself, and what is left in the queue at the end, is written by ``sync``.

    Args:
        open_tracker: makes the tracker; called in the thread, because importing MLflow and creating a database take
            seconds.
        say: receives one line when the store becomes unreachable, one when it is back, and one at the end of the
            ``with`` block about what is left to ``sync``.
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
        self._closing, self._pauses = threading.Event(), pauses
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, cell_id: str) -> None:
        """Queue a finished cell. Returns at once."""
        self._queue.put(cell_id)

    @property
    def pending(self) -> int:
        """Length of the queue; the run being written at the moment is not counted."""
        return self._queue.qsize()

    def close(self, timeout: float = CLOSE_SECONDS) -> str:
        """Write what is queued for at most ``timeout`` seconds, and end the thread.

        A store that is unreachable gets one more try. Returns what was wrong in one line, ``""`` for nothing.
        """
        self._closing.set()
        self._queue.put(None)
        self._thread.join(timeout)
        if self._thread.is_alive():
            return f"{self.pending} runs were not tracked in time"
        if self._unwritten and self._problem is not None:
            return f"{self._unwritten} runs could not be tracked: {self._problem.message}"
        return ""

    def __enter__(self) -> BackgroundTracker:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        problem = self.close(CLOSE_SECONDS if kind is None else 10.0)
        if problem and kind is None:
            self._say(f"{problem}; the sync below or the `sync` command writes them")

    def _work(self) -> None:
        while (cell_id := self._queue.get()) is not None:
            refused = self._problem is not None and self._problem.kind == "refused"
            ending = self._closing.is_set() and (self._problem is not None or self.pending > LEFT_TO_SYNC)
            if refused or ending or not self._write(cell_id):  # `sync` writes what is left
                self._unwritten += 1

    def _write(self, cell_id: str) -> bool:
        """Write one run, again and again while the store is unreachable; returns whether it was written."""
        pause, longest = self._pauses
        while True:
            before = self._problem
            try:
                self._tracker = self._tracker or self._open_tracker()
                result = self._read(cell_id)
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
