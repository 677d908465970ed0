"""Maps a function over numbers in a pool of threads. Results come in order, and only a few of them wait in memory."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from orchestrator.util.machine import usable_processors

Result = TypeVar("Result")

MAX_THREADS = 4
"""Largest number of threads in a pool. Pillow decodes and resizes without the interpreter's lock, but the other work
holds the lock, so more than about four threads would wait for the lock."""

AHEAD = 4
"""Largest number of results per thread that wait until an earlier result is ready. This bounds the memory."""


def thread_map(work: Callable[[int], Result], count: int) -> Iterator[Result]:
    """Yield ``work(0)`` to ``work(count - 1)`` in order. An exception of ``work`` is raised in place of the result."""
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
        finally:  # the caller may stop before the last result
            for future in waiting:
                future.cancel()
