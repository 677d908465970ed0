"""Repeats a sync while MLflow cannot be reached, shows the progress, and lets Ctrl-C end the waiting."""

import threading
import time
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future

from rich.console import Console

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
    total: float = 6.0,
    pauses: tuple[float, float] = (1.0, 30.0),
    silence: float = 90.0,
) -> SyncReport:
    """Call ``attempt`` until it returns a report. The console shows the progress.

    ``attempt`` runs in a thread, so that Ctrl-C ends the waiting even while MLflow does not answer.

    Args:
        total: seconds after which no further attempt is made. If an attempt gets further than all earlier ones, the
            seconds are counted from its end, and the next pause is the shortest again.
        pauses: seconds of the first and of the longest pause; each pause is twice as long as the one before.
        silence: seconds without progress after which a running attempt counts as failed.

    Raises the last error of ``attempt`` if waiting cannot help or has not helped.
    """
    first, longest = pauses
    furthest = (False, 0)
    next_line = time.monotonic() + _LINE_EVERY_SECONDS

    def show(text: str) -> None:
        """Show the text in the status line of the terminal. Without a terminal, print a text at most every 30 s."""
        nonlocal next_line
        status.update(text)
        if not console.is_terminal and time.monotonic() >= next_line:
            print_line(text, console)
            next_line = time.monotonic() + _LINE_EVERY_SECONDS

    with console.status("MLflow: connecting") as status:
        began, pause = time.monotonic(), first
        while True:
            running = _Attempt(attempt)
            try:
                return running.wait(silence, show)
            except Exception as error:
                problem, now = classify_tracking_error(error), time.monotonic()
                if running.reached > furthest:
                    furthest, began, pause = running.reached, now, first
                if problem.kind != "unreachable" or now + pause - began >= total:
                    raise
            until = now + pause
            while (left := until - time.monotonic()) > 0:
                show(f"MLflow: {problem.message}; next try in {left:.0f} s (Ctrl-C: stop trying)")
                time.sleep(min(left, _POLL_SECONDS))
            pause = min(2 * pause, longest)


class _Attempt:
    """One attempt in a separate thread, and its progress."""

    def __init__(self, attempt: Callable[[OnProgress], SyncReport]) -> None:
        self._outcome: Future[SyncReport] = Future()
        self._abandoned = threading.Event()
        self._updated = time.monotonic()
        self._done = self._total = 0
        self._first_update: tuple[float, int] | None = None
        threading.Thread(target=self._run, args=(attempt,), name="sync", daemon=True).start()

    @property
    def reached(self) -> tuple[bool, int]:
        """How far the attempt got: whether all runs in MLflow are listed, and a number of runs.

        During the listing, this is the number of runs listed so far. Afterwards, it is the number of runs that were
        written or found to be equal.
        """
        return self._total > 0, self._done

    def wait(self, silence: float, show: Callable[[str], None]) -> SyncReport:
        """Wait for the end of the attempt, show its progress, and return its report.

        Raises the error of the attempt, or ``NoAnswer`` after ``silence`` seconds without progress.
        """
        try:
            while not self._outcome.done():
                show(self._message())
                futures.wait([self._outcome], _POLL_SECONDS)
                if not self._outcome.done() and time.monotonic() - self._updated > silence:
                    raise NoAnswer(f"no answer for {silence:.0f} s")
        finally:
            self._abandoned.set()
        return self._outcome.result()

    def _run(self, attempt: Callable[[OnProgress], SyncReport]) -> None:
        try:
            self._outcome.set_result(attempt(self._update))
        except BaseException as error:
            self._outcome.set_exception(error)

    def _update(self, done: int, total: int) -> None:
        if self._abandoned.is_set():  # ends this thread: another attempt may be running by now
            raise NoAnswer("the attempt was given up")
        self._updated, self._done, self._total = time.monotonic(), done, total
        if total and self._first_update is None:
            self._first_update = (self._updated, done)

    def _message(self) -> str:
        if not self._total:
            return f"MLflow: {self._done} runs listed" if self._done else "MLflow: connecting"
        text = f"MLflow: {self._done} of {self._total} runs"
        began, before = self._first_update or (self._updated, 0)
        if self._done - before >= 5:
            left = (self._updated - began) / (self._done - before) * (self._total - self._done)
            text += f", {human_duration(left)} left"
        return text
