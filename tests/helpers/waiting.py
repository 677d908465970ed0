"""Waiting for what another thread or process does.

A limit here says when a test has failed, never how quick something must be: a machine may be busy with other things.
"""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 300.0
"""Seconds after which what has not happened is taken for never going to."""


def until(reached: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.03) -> bool:
    """Wait until something is so; ``False`` if it is not after so many seconds."""
    deadline = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
    return True


def wait_for(reached: Callable[[], bool], seconds: float = PATIENCE, pause: float = 0.01) -> None:
    """Wait until something is so. Raises ``TimeoutError`` when it does not become so."""
    if not until(reached, seconds, pause):
        raise TimeoutError(f"waited {seconds:.0f} s in vain")
