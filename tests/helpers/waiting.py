"""Wait for a condition that another thread or process fulfils.

The time limits only end a test that hangs. They say nothing about speed, because the machine may be busy.
"""

import time
from collections.abc import Callable

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
