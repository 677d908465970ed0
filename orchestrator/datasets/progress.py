"""Progress of decoding and of downloads: on a terminal a bar, elsewhere a line every few seconds."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich import progress
from rich.console import Console

from orchestrator.util.console import print_line
from orchestrator.util.units import human_bytes

PLAIN_SECONDS = 5.0
"""Seconds between two lines where there is no terminal."""


@contextlib.contextmanager
def show_progress(
    name: str, console: Console, *, start: int = 0, in_bytes: bool = False
) -> Iterator[Callable[[int, int | None], None]]:
    """Yield a function to call with the number of images done so far, and with the total if it is known.

    Args:
        name: shown before the numbers.
        start: number of images that were done before.
        in_bytes: the numbers count bytes instead of images.
    """
    if console.is_terminal:
        counts: list[progress.ProgressColumn] = [progress.MofNCompleteColumn()]
        if in_bytes:
            counts = [progress.DownloadColumn(binary_units=True), progress.TransferSpeedColumn()]
        text = progress.TextColumn("{task.description}", markup=False)
        columns = (text, progress.BarColumn(), *counts, progress.TimeRemainingColumn())
        with progress.Progress(*columns, console=console, transient=not in_bytes) as bar:
            task = bar.add_task(name, total=None, completed=start)
            yield lambda done, of: bar.update(task, completed=done, total=of)
        return
    begun = printed = time.monotonic()

    def print_progress(done: int, of: int | None) -> None:
        nonlocal printed
        if (in_bytes and done == of) or time.monotonic() - printed >= PLAIN_SECONDS:
            printed = time.monotonic()
            amounts = [human_bytes(amount) if in_bytes else str(amount) for amount in (done, of) if amount]
            rate = f", {human_bytes((done - start) / max(printed - begun, 1e-3))}/s" if in_bytes else ""
            print_line(f"{name}: {' of '.join(amounts)}{rate}", console)

    yield print_progress
