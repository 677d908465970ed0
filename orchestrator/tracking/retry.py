"""Retries a sync with MLflow while its store cannot be reached, shows the progress, and lets Ctrl-C end the waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.status import Status
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_before_delay, wait_exponential

from orchestrator.tracking.errors import NoAnswer, classify_tracking_error
from orchestrator.tracking.tracker import OnProgress, SyncReport
from orchestrator.util.units import human_duration

_POLL_SECONDS = 0.1
_SHOWN_AFTER_SECONDS = 2.0
_LINE_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """How long a sync is retried.

    Attributes:
        total: seconds without progress before the sync is given up.
        first, longest: seconds of the first pause and of the longest; pauses double.
        silence: seconds without progress after which a running attempt counts as failed.
    """

    total: float = 180.0
    first: float = 1.0
    longest: float = 30.0
    silence: float = 90.0


def retry_sync(
    attempt: Callable[[OnProgress], SyncReport], console: Console, policy: RetryPolicy = RetryPolicy()
) -> SyncReport:
    """Call ``attempt`` until it returns; the console shows how far it is.

    ``attempt`` runs in a thread, so that Ctrl-C ends the waiting even while the store does not answer. An attempt that
    wrote some runs before it failed starts the pauses and ``policy.total`` anew: its runs are not written twice.

    Raises the last error of ``attempt`` when waiting does not help or has not helped, and ``KeyboardInterrupt``.
    """
    progress = _Progress()
    with _StatusLine(console) as line:

        def restart_after_progress(state: RetryCallState) -> None:
            if progress.advanced:
                state.start_time, state.attempt_number = time.monotonic(), 1

        def wait(seconds: float) -> None:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                line.show(f"MLflow: {progress.problem}; next try in {left:.0f} s (Ctrl-C: stop trying)")
                time.sleep(min(left, _POLL_SECONDS))

        def may_pass(error: BaseException) -> bool:
            problem = classify_tracking_error(error)
            progress.problem = problem.message
            return problem.kind == "unreachable"

        retrying = Retrying(
            retry=retry_if_exception(may_pass),
            after=restart_after_progress,
            wait=wait_exponential(multiplier=policy.first, max=policy.longest),
            stop=stop_before_delay(policy.total),
            sleep=wait,
            reraise=True,
        )
        return retrying(_run_attempt, attempt, progress, line, policy.silence)


@dataclass
class _Progress:
    """How far the running attempt is; written by its thread, read by the waiting one."""

    done: int = 0
    total: int = 0
    problem: str = ""
    advanced: bool = False
    updated: float = field(default_factory=time.monotonic)
    first_update: tuple[float, int] | None = None

    def start_attempt(self) -> None:
        self.advanced, self.updated, self.first_update = False, time.monotonic(), None

    def update(self, done: int, total: int) -> None:
        self.advanced, self.updated = True, time.monotonic()
        if total and self.first_update is None:
            self.first_update = (self.updated, done)
        self.done, self.total = done, total

    def message(self) -> str:
        if not self.total:
            return f"MLflow: {self.done} runs compared" if self.done else "MLflow: connecting"
        text = f"MLflow: {self.done} of {self.total} runs"
        began, before = self.first_update or (self.updated, 0)
        if self.done - before >= 5:
            left = (self.updated - began) / (self.done - before) * (self.total - self.done)
            text += f", {human_duration(left)} left"
        return text


def _run_attempt(
    attempt: Callable[[OnProgress], SyncReport], progress: _Progress, line: _StatusLine, silence: float
) -> SyncReport:
    """Run one attempt in a thread. Raises its error, or ``NoAnswer`` after ``silence`` seconds without progress."""
    results: list[SyncReport] = []
    errors: list[BaseException] = []
    abandoned = threading.Event()

    def on_progress(done: int, total: int) -> None:
        if abandoned.is_set():  # ends this thread: another attempt may be running by now
            raise NoAnswer("the attempt was given up")
        progress.update(done, total)

    def work() -> None:
        try:
            results.append(attempt(on_progress))
        except BaseException as error:
            errors.append(error)

    progress.start_attempt()
    thread = threading.Thread(target=work, name="sync", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            line.show(progress.message())
            thread.join(_POLL_SECONDS)
            if thread.is_alive() and time.monotonic() - progress.updated > silence:
                raise NoAnswer(f"no answer for {silence:.0f} s")
    finally:
        abandoned.set()
    if errors:
        raise errors[0]
    return results[0]


class _StatusLine:
    """One changing line on a terminal, a printed line every 30 s elsewhere; shows nothing in the first 2 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._next = time.monotonic() + _SHOWN_AFTER_SECONDS

    def __enter__(self) -> _StatusLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def show(self, text: str) -> None:
        """Show a text, unless the last one was shown only just now."""
        now = time.monotonic()
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, soft_wrap=True, markup=False)
            self._next = now + _LINE_EVERY_SECONDS
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        self._status.update(text)
        self._next = now + 0.2
