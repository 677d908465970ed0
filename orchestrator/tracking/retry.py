"""Bringing MLflow to what the results say, however slow or absent it is: retries, progress, and a Ctrl-C that works."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.status import Status

from orchestrator.tracking.errors import NoAnswer, classify_tracking_error
from orchestrator.tracking.tracker import SyncReport
from orchestrator.util.units import human_duration

Told = Callable[[int, int], None]
"""Is told how many runs are looked at or written, and of how many; 0 for not known yet."""

_LOOK_SECONDS = 0.1
_SHOWN_AFTER_SECONDS = 2.0
_LINE_EVERY_SECONDS = 30.0


@dataclass(frozen=True)
class RetryPolicy:
    """How long a store that is away is waited for.

    Attributes:
        total: seconds without getting any further before it is given up.
        first, longest: of the pauses between tries.
        silence: seconds without an answer, after which a try counts as failed.
    """

    total: float = 180.0
    first: float = 1.0
    longest: float = 30.0
    silence: float = 90.0


@dataclass
class _Meter:
    """How far a try is, told from its thread."""

    done: int = 0
    total: int = 0
    moved: float = field(default_factory=time.monotonic)
    begun: tuple[float, int] | None = None

    def tell(self, done: int, total: int) -> None:
        self.moved = time.monotonic()
        if total and self.begun is None:
            self.begun = (self.moved, done)
        self.done, self.total = done, total

    def words(self) -> str:
        if not self.total:
            return f"MLflow: {self.done} runs looked at" if self.done else "MLflow: connecting"
        text = f"MLflow: {self.done} of {self.total} runs"
        began, before = self.begun or (self.moved, 0)
        if self.done - before >= 5:
            left = (self.moved - began) / (self.done - before) * (self.total - self.done)
            text += f", {human_duration(left)} left"
        return text


def retry_sync(
    attempt: Callable[[Told], SyncReport], console: Console, policy: RetryPolicy = RetryPolicy()
) -> SyncReport:
    """Call ``attempt`` until it comes to its end, while the terminal shows how far it is.

    It runs in a thread, so that Ctrl-C ends the waiting at once even where the store does not answer.

    Raises what ``attempt`` raised last, when that will not pass by waiting or has not in ``policy.total`` seconds,
    and ``KeyboardInterrupt``.
    """
    meter = _Meter()
    given_up = time.monotonic() + policy.total
    pause = policy.first
    with _Shown(console) as shown:
        while True:
            before = meter.moved
            error, report = _one_try(attempt, meter, shown, policy.silence)
            if report is not None:
                return report
            assert error is not None
            problem = classify_tracking_error(error)
            now = time.monotonic()
            if meter.moved > before:  # it has got somewhere: what is there by now will not be written again
                given_up, pause = now + policy.total, policy.first
            if problem.kind != "away" or now + pause > given_up:
                raise error
            until = now + pause
            while (left := until - time.monotonic()) > 0:
                shown.say(f"MLflow: {problem.message}; next try in {left:.0f} s (Ctrl-C: not now)")
                time.sleep(min(left, _LOOK_SECONDS))
            pause = min(2 * pause, policy.longest)


def _one_try(
    attempt: Callable[[Told], SyncReport], meter: _Meter, shown: _Shown, silence: float
) -> tuple[BaseException | None, SyncReport | None]:
    made: list[tuple[BaseException | None, SyncReport | None]] = []
    abandoned = threading.Event()

    def tell(done: int, total: int) -> None:
        if abandoned.is_set():  # it was silent for long, and another try may be under way
            raise NoAnswer("came back too late")
        meter.tell(done, total)

    def work() -> None:
        try:
            made.append((None, attempt(tell)))
        except BaseException as error:
            made.append((error, None))

    meter.begun = None
    last, seen = time.monotonic(), meter.moved
    thread = threading.Thread(target=work, name="sync", daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            shown.say(meter.words())
            thread.join(_LOOK_SECONDS)
            if meter.moved != seen:
                last, seen = time.monotonic(), meter.moved
            if time.monotonic() - last > silence:
                return NoAnswer(f"no answer for {silence:.0f} s"), None
    finally:
        if not made:
            abandoned.set()
    return made[0]


class _Shown:
    """One changing line on a terminal; elsewhere a line now and then. Nothing for what is quick."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None
        self._next = time.monotonic() + _SHOWN_AFTER_SECONDS

    def __enter__(self) -> _Shown:
        return self

    def __exit__(self, *error: object) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, words: str) -> None:
        """Show it, unless it is too early."""
        now = time.monotonic()
        if now < self._next:
            return
        if not self._console.is_terminal:
            self._console.print(words, highlight=False, soft_wrap=True, markup=False)
            self._next = now + _LINE_EVERY_SECONDS
            return
        if self._status is None:
            self._status = self._console.status(words)
            self._status.start()
        self._status.update(words)
        self._next = now + 0.2
