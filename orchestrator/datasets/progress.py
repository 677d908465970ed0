"""Progress of decoding and of downloads: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from orchestrator.util.units import human_bytes, human_duration

PLAIN_SECONDS = 5.0
"""Seconds between two lines where there is no terminal."""


@contextlib.contextmanager
def decoding(name: str, console: Console) -> Iterator[Callable[[int, int], None]]:
    """Yield a function to call with the number of decoded images and the total."""
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"decoding {name}", total=None)
            yield lambda done, of: bar.update(task, completed=done, total=of)
        return
    printed = time.monotonic()

    def plain(done: int, of: int) -> None:
        nonlocal printed
        if time.monotonic() - printed >= PLAIN_SECONDS:
            printed = time.monotonic()
            _print_line(console, f"decoding {name}: {done} of {of}")

    yield plain


@contextlib.contextmanager
def downloading(name: str, console: Console, start: int, total: int | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of bytes that have arrived since its last call.

    Args:
        name: the file.
        console: where the progress is shown.
        start: bytes that an earlier attempt has fetched.
        total: size of the file in bytes, ``None`` if the server does not say.
    """
    if console.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        with Progress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console) as bar:
            task = bar.add_task(name, total=total, completed=start)
            yield lambda count: bar.advance(task, count)
        return
    done, begun = start, time.monotonic()
    printed = begun

    def line() -> str:
        rate = (done - start) / max(time.monotonic() - begun, 1e-3)
        if not total:
            return f"{name}: {human_bytes(done)}, {human_bytes(rate)}/s"
        left = f", about {human_duration((total - done) / rate)} left" if rate > 0 and done < total else ""
        return f"{name}: {human_bytes(done)} of {human_bytes(total)} ({done / total:.0%}), {human_bytes(rate)}/s{left}"

    def plain(count: int) -> None:
        nonlocal done, printed
        done += count
        if time.monotonic() - printed >= PLAIN_SECONDS:
            printed = time.monotonic()
            _print_line(console, line())

    yield plain
    _print_line(console, line())


def _print_line(console: Console, line: str) -> None:
    console.print(line, highlight=False, soft_wrap=True, markup=False)
