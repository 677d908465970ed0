"""Tracking while cells run: a thread that nothing stops and that stops nothing."""

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
"""Longer than MLflow takes to give up on a server that does not answer."""

LEFT_TO_SYNC = 200
"""At the end so many runs are still written here; more of them are left to ``sync``, which shows how far it is."""


class BackgroundTracker:
    """Writes finished cells to a tracker in the background, so that tracking never holds up the cells.

    A store that cannot be written to is no reason to stop a grid, and no reason to lose a run: what could not be
    written is tried again after pauses that grow to a minute, in the order it was finished. Only ids are kept; a result
    is read from the store when it is its turn. What is left at the end is ``sync``'s.

    Args:
        open_tracker: makes the tracker, in the thread; importing MLflow and creating a database take seconds.
        describe: how cells are labelled.
        read: the result of a finished cell, by its id.
        say: is told once when the store goes away, and once when it is back.
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
        self._wake = threading.Condition()
        self._waiting: deque[str] = deque()
        self._trouble: TrackingProblem | None = None
        self._failures = 0
        self._not_before = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="tracker", daemon=True)
        self._thread.start()

    def put(self, cell_id: str) -> None:
        """Have a finished cell tracked. Returns at once."""
        with self._wake:
            self._waiting.append(cell_id)
            self._wake.notify()

    @property
    def pending(self) -> int:
        """How many cells are not tracked yet; one that is being written may be missing from it."""
        return len(self._waiting)

    def close(self, timeout: float = CLOSE_SECONDS) -> str:
        """Write what is left, for at most ``timeout`` seconds; the problem there was, in one line, or ``""``.

        A store that is away gets one more try; waiting for it is ``sync``'s.
        """
        with self._wake:
            if not self._closing:
                self._closing, self._not_before = True, 0.0
                self._failures = 0
            self._wake.notify()
        self._thread.join(timeout)
        if self._thread.is_alive():
            return f"{len(self._waiting) + 1} runs were not tracked in time"
        if self._waiting and self._trouble is not None:
            return f"{len(self._waiting)} runs could not be tracked: {self._trouble.message}"
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
        """The next cell to write, when it is time to; ``None`` to end."""
        with self._wake:
            while True:
                refused = self._trouble is not None and self._trouble.kind == "refused"
                if self._closing:
                    ends = refused or self._failures or not self._waiting or len(self._waiting) > LEFT_TO_SYNC
                    return None if ends else self._waiting.popleft()
                pause = self._not_before - time.monotonic()
                if self._waiting and pause <= 0 and not refused:
                    return self._waiting.popleft()
                self._wake.wait(pause if self._waiting and not refused else None)

    def _failed(self, cell_id: str, trouble: TrackingProblem) -> None:
        first, longest = self._pauses
        with self._wake:
            # What is wrong with one run must not keep the others back.
            (self._waiting.append if trouble.kind == "other" else self._waiting.appendleft)(cell_id)
            news = self._trouble is None or self._trouble.kind != trouble.kind
            self._trouble = trouble
            self._failures += 1
            self._not_before = time.monotonic() + min(longest, first * 2 ** min(self._failures - 1, 30))
            closing = self._closing
        if news and not closing:
            self._say(f"{trouble.message}; the grid goes on")

    def _written(self) -> None:
        with self._wake:
            was, self._trouble = self._trouble, None
            self._failures, self._not_before = 0, 0.0
            behind = len(self._waiting)
        if was is not None and was.kind == "away":
            self._say(f"written to again; {behind} runs behind")
