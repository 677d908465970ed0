"""Progress of decoding: a bar on a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

PLAIN_SECONDS = 5.0


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
            console.print(f"decoding {name}: {done} of {of}", highlight=False, soft_wrap=True, markup=False)

    yield plain
