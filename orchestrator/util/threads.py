"""Maps work over a pool of threads: the results come in order, and only a few of them wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from orchestrator.util.machine import usable_processors

Result = TypeVar("Result")

MAX_THREADS = 4
"""Pillow decodes and resizes without the interpreter's lock; the rest, which holds the lock, keeps about four threads
busy. Several splits can be decoded at once on one machine: the threads never wait for one another."""

AHEAD = 4
"""Finished results per thread that may wait for an earlier one. This bounds the memory."""


def thread_map(work: Callable[[int], Result], count: int) -> Iterator[Result]:
    """Yield ``work(0)`` to ``work(count - 1)`` in order. An exception is raised in place of its result."""
    threads = min(MAX_THREADS, usable_processors())
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="images") as pool:
        try:
            for index in range(count):
                waiting.append(pool.submit(work, index))
                if len(waiting) >= AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # the caller may have stopped iterating
            for future in waiting:
                future.cancel()
