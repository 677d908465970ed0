"""Retries a sync with MLflow while its store cannot be reached, shows the progress, and lets Ctrl-C end the waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future

from rich.console import Console
from rich.status import Status

from orchestrator.core.events import OnProgress
from orchestrator.tracking.errors import NoAnswer, classify_tracking_error
from orchestrator.tracking.tracker import SyncReport
from orchestrator.util.console import print_line
from orchestrator.util.units import human_duration

_POLL_SECONDS = 0.1
_LINE_EVERY_SECONDS = 30.0


def retry_sync(
    attempt: Callable[[OnProgress], SyncReport],
    console: Console,
    *,
    total: float = 180.0,
    pauses: tuple[float, float] = (1.0, 30.0),
    silence: float = 90.0,
) -> SyncReport:
    """Call ``attempt`` until it returns; the console shows how far it is.

    ``attempt`` runs in a thread, so that Ctrl-C ends the waiting even while the store does not answer.

    Args:
        total: seconds without progress before the sync is given up. An attempt that came further than all before it
            starts the pauses and this time anew: what it wrote is not written twice.
        pauses: seconds of the first pause and of the longest; pauses double.
        silence: seconds without progress after which a running attempt counts as failed.

    Raises the last error of ``attempt`` when waiting does not help or has not helped.
    """
    first, longest = pauses
    with console.status("MLflow: connecting") as status:
        progress = _Progress(console, status)
        began, pause = time.monotonic(), first
        while True:
            try:
                return _run_attempt(attempt, progress, silence)
            except Exception as error:
                problem, now = classify_tracking_error(error), time.monotonic()
                if progress.advanced:
                    began, pause = now, first
                if problem.kind != "unreachable" or now + pause - began >= total:
                    raise
            until = now + pause
            while (left := until - time.monotonic()) > 0:
                progress.show(f"MLflow: {problem.message}; next try in {left:.0f} s (Ctrl-C: stop trying)")
                time.sleep(min(left, _POLL_SECONDS))
            pause = min(2 * pause, longest)


class _Progress:
    """How far the running attempt is: a changing line on a terminal, a printed one every 30 s elsewhere.

    The attempt's thread calls :meth:`update`, and the waiting thread calls :meth:`show`.
    """

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._next_line = time.monotonic() + _LINE_EVERY_SECONDS
        self._furthest = (False, 0)
        self.start_attempt()

    def start_attempt(self) -> None:
        self.advanced, self.updated = False, time.monotonic()
        self._done = self._total = 0
        self._first_update: tuple[float, int] | None = None

    def update(self, done: int, total: int) -> None:
        self.updated = time.monotonic()
        reached = (total > 0, done)  # the runs of the experiment are listed before the first is compared
        if reached > self._furthest:
            self._furthest, self.advanced = reached, True
        if total and self._first_update is None:
            self._first_update = (self.updated, done)
        self._done, self._total = done, total

    def message(self) -> str:
        if not self._total:
            return f"MLflow: {self._done} runs compared" if self._done else "MLflow: connecting"
        text = f"MLflow: {self._done} of {self._total} runs"
        began, before = self._first_update or (self.updated, 0)
        if self._done - before >= 5:
            left = (self.updated - began) / (self._done - before) * (self._total - self._done)
            text += f", {human_duration(left)} left"
        return text

    def show(self, text: str) -> None:
        self._status.update(text)
        if not self._console.is_terminal and time.monotonic() >= self._next_line:
            print_line(text, self._console)
            self._next_line = time.monotonic() + _LINE_EVERY_SECONDS


def _run_attempt(attempt: Callable[[OnProgress], SyncReport], progress: _Progress, silence: float) -> SyncReport:
    """Run one attempt in a thread. Raises its error, or ``NoAnswer`` after ``silence`` seconds without progress."""
    outcome: Future[SyncReport] = Future()
    abandoned = threading.Event()

    def on_progress(done: int, total: int) -> None:
        if abandoned.is_set():  # ends this thread: another attempt may be running by now
            raise NoAnswer("the attempt was given up")
        progress.update(done, total)

    def work() -> None:
        try:
            outcome.set_result(attempt(on_progress))
        except BaseException as error:
            outcome.set_exception(error)

    progress.start_attempt()
    threading.Thread(target=work, name="sync", daemon=True).start()
    try:
        while not outcome.done():
            progress.show(progress.message())
            futures.wait([outcome], _POLL_SECONDS)
            if not outcome.done() and time.monotonic() - progress.updated > silence:
                raise NoAnswer(f"no answer for {silence:.0f} s")
    finally:
        abandoned.set()
    return outcome.result()
