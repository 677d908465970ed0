"""Wait for a condition that another thread or process fulfils.

The time limits only end a test that hangs. They are long, because the machine may be busy.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
TIMEOUT = 300.0
"""Seconds after which a test counts as hanging."""


def until(reached: Callable[[], bool], seconds: float = TIMEOUT, pause: float = 0.03) -> bool:
    """Wait until ``reached()`` is true; return ``False`` if that takes longer than ``seconds``."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def wait_for(reached: Callable[[], bool], seconds: float = TIMEOUT, pause: float = 0.01) -> None:
    """Wait until ``reached()`` is true. Raises ``TimeoutError`` if that takes longer than ``seconds``."""
    if not until(reached, seconds, pause):
        raise TimeoutError(f"the condition was not fulfilled within {seconds:.0f} s")


def at_once(count: int, act: Callable[[int], Given]) -> list[Given]:
    """Call ``act`` with 0 to ``count - 1`` in threads that start at the same moment; return the results in order.

    Raises what any call raised.
    """
    ready = threading.Barrier(count)

    def work(number: int) -> Given:
        ready.wait(TIMEOUT)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))
