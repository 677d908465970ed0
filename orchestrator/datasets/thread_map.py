"""Work on images in several threads, its results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from orchestrator.util.machine import usable_processors

Made = TypeVar("Made")

MOST_THREADS = 4
"""Pillow decodes and resizes without the interpreter's lock; what is left under it feeds about so many threads. Several
splits being decoded at once on one machine share its processors without harm: these threads never wait for one another,
and each holds a few images."""

AHEAD = 4
"""Results per thread that may wait for the one before them; what bounds the memory."""


def thread_map(work: Callable[[int], Made], count: int) -> Iterator[Made]:
    """``work(0)``, ``work(1)``, ... of ``count``. What it raises is raised where its result would have come."""
    threads = min(MOST_THREADS, usable_processors())
    pending: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool:
        try:
            for index in range(count):
                pending.append(pool.submit(work, index))
                if len(pending) >= AHEAD * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # when whoever asked has stopped asking
            for future in pending:
                future.cancel()
