"""Wait for a condition that another thread or process fulfils.

The time limits only end a test that hangs. They say nothing about speed, because the machine may be busy.
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
    """Wait until ``reached`` returns true; returns ``False`` if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def wait_for(reached: Callable[[], bool], seconds: float = TIMEOUT, pause: float = 0.01) -> None:
    """Wait until ``reached`` returns true. Raises ``TimeoutError`` if it does not within ``seconds``."""
    if not until(reached, seconds, pause):
        raise TimeoutError(f"the condition was not fulfilled within {seconds:.0f} s")


def at_once(count: int, act: Callable[[int], Given]) -> list[Given]:
    """What ``act`` gives in as many threads, all held back until each of them is there. Raises what any raised."""
    ready = threading.Barrier(count)

    def work(number: int) -> Given:
        ready.wait(TIMEOUT)
        return act(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))
