"""Writes finished cells to MLflow in a background thread while a grid runs; its errors never end the run."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from orchestrator.store.results import Result
from orchestrator.tracking.errors import TrackingProblem, classify_tracking_error
from orchestrator.tracking.runs import Describe
from orchestrator.tracking.tracker import Tracker

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0
CLOSE_SECONDS = 90.0
"""Longer than MLflow needs to give up on a server that does not answer."""

LEFT_TO_SYNC = 200
"""If more runs are queued at the end, the thread leaves them to ``sync``, which shows its progress."""


class BackgroundTracker:
    """A queue of finished cells and the thread that writes them to a tracker.

    A store that cannot be written to neither stops the grid nor loses a run: a failed write is tried again after
    pauses that double up to a minute. The queue holds ids only; a result is read from the store when it is written.
    What is left in the queue at the end is written by ``sync``.

    Args:
        open_tracker: makes the tracker; called in the thread, because importing MLflow and creating a database take
            seconds.
        describe: labels of a cell's run.
        read: the result of a finished cell, by its id.
        say: receives one line when the store becomes unreachable, and one when it is back.
        pauses: seconds of the first pause and of the longest.
    """

    def __init__(
        self,
        open_tracker: Callable[[], Tracker],
        describe: Describe,
        read: Callable[[str], Result],
        *,
        say: Callable[[str], None] = lambda line: None,
        pauses: tuple[float, float] = (FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS),
    ) -> None:
        self._open_tracker, self._describe, self._read = open_tracker, describe, read
        self._say, self._pauses = say, pauses
        self._changed = threading.Condition()
        self._queue: deque[str] = deque()
        self._problem: TrackingProblem | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, cell_id: str) -> None:
        """Queue a finished cell. Returns at once."""
        with self._changed:
            self._queue.append(cell_id)
            self._changed.notify()

    @property
    def pending(self) -> int:
        """Length of the queue; the run being written at the moment is not counted."""
        return len(self._queue)

    def close(self, timeout: float = CLOSE_SECONDS) -> str:
        """Write what is queued for at most ``timeout`` seconds, and end the thread.

        A store that is unreachable gets one more try. Returns what was wrong in one line, ``""`` for nothing.
        """
        with self._changed:
            if not self._closing:
                self._closing, self._not_before = True, 0.0
                self._failures = 0
            self._changed.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return f"{len(self._queue) + 1} runs were not tracked in time"
        if self._queue and self._problem is not None:
            return f"{len(self._queue)} runs could not be tracked: {self._problem.message}"
        return ""

    def __enter__(self) -> BackgroundTracker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(CLOSE_SECONDS if kind is None else 10.0)

    def _work(self) -> None:
        tracker: Tracker | None = None
        while (cell_id := self._next()) is not None:
            try:
                tracker = tracker or self._open_tracker()
                result = self._read(cell_id)
                tracker.log_result(result, self._describe(result))
            except Exception as error:
                tracker = None
                self._failed(cell_id, classify_tracking_error(error))
            else:
                self._written()

    def _next(self) -> str | None:
        """Wait for the next cell to write and return its id; ``None`` ends the thread."""
        with self._changed:
            while True:
                refused = self._problem is not None and self._problem.kind == "refused"
                if self._closing:
                    ends = refused or self._failures or not self._queue or len(self._queue) > LEFT_TO_SYNC
                    return None if ends else self._queue.popleft()
                pause = self._not_before - time.monotonic()
                if self._queue and pause <= 0 and not refused:
                    return self._queue.popleft()
                self._changed.wait(pause if self._queue and not refused else None)

    def _failed(self, cell_id: str, problem: TrackingProblem) -> None:
        first, longest = self._pauses
        with self._changed:
            # A problem with a single run must not hold back the others, so that run goes to the end of the queue.
            (self._queue.append if problem.kind == "other" else self._queue.appendleft)(cell_id)
            is_new = self._problem is None or self._problem.kind != problem.kind
            self._problem = problem
            self._failures += 1
            self._not_before = time.monotonic() + min(longest, first * 2 ** min(self._failures - 1, 30))
            closing = self._closing
        if is_new and not closing:
            self._say(f"{problem.message}; the grid goes on")

    def _written(self) -> None:
        with self._changed:
            before, self._problem = self._problem, None
            self._failures, self._not_before = 0, 0.0
            pending = len(self._queue)
        if before is not None and before.kind == "unreachable":
            self._say(f"the tracking store can be written to again; {pending} runs are queued")
