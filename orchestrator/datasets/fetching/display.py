"""How far a download is: a bar with rate and time left on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from orchestrator.util.units import human_bytes, human_duration

PLAIN_SECONDS = 5.0


class TransferDisplay:
    """Shows one transfer; a context manager.

    Args:
        name: what is fetched.
        console: where it is shown.
        done: bytes that were there before.
        total: bytes in all, ``None`` if the server does not say.
    """

    def __init__(self, name: str, console: Console, done: int = 0, total: int | None = None) -> None:
        self._name, self._console = name, console
        self._first = self._done = done
        self._total = total
        self._begun = self._said = time.monotonic()
        self._bar: Progress | None = None

    def __enter__(self) -> TransferDisplay:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
            self._bar = Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=self._console)
            self._bar.start()
            self._bar.add_task(self._name, total=self._total, completed=self._done)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif kind is None:
            self._say()

    def advance(self, count: int) -> None:
        """So many bytes more."""
        self._done += count
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], count)
        elif time.monotonic() - self._said >= PLAIN_SECONDS:
            self._say()

    def _say(self) -> None:
        now = time.monotonic()
        self._said = now
        rate = (self._done - self._first) / max(now - self._begun, 1e-3)
        parts = [human_bytes(self._done)]
        if self._total:
            parts = [f"{human_bytes(self._done)} of {human_bytes(self._total)} ({self._done / self._total:.0%})"]
        parts.append(f"{human_bytes(rate)}/s")
        if self._total and rate > 0 and self._done < self._total:
            parts.append(f"about {human_duration((self._total - self._done) / rate)} left")
        self._console.print(f"{self._name}: {', '.join(parts)}", highlight=False, soft_wrap=True, markup=False)
