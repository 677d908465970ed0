"""Map a function over indices in several threads, results in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from orchestrator.util.machine import usable_processors

Made = TypeVar("Made")

MAX_THREADS = 4
"""Pillow decodes and resizes without the interpreter's lock; the rest, which holds the lock, keeps about four threads
busy. Several splits can be decoded at once on one machine: the threads never wait for one another."""

AHEAD = 4
"""Finished results per thread that may wait for an earlier one. This bounds the memory."""


def thread_map(work: Callable[[int], Made], count: int) -> Iterator[Made]:
    """Yield ``work(0)`` to ``work(count - 1)`` in order. An exception is raised in place of its result."""
    threads = min(MAX_THREADS, usable_processors())
    pending: deque[Future[Made]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool:
        try:
            for index in range(count):
                pending.append(pool.submit(work, index))
                if len(pending) >= AHEAD * threads:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:  # the caller may have stopped iterating
            for future in pending:
                future.cancel()
