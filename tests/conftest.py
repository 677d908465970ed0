"""What all tests need of the process they run in."""

from __future__ import annotations

import os
import signal


def pytest_configure() -> None:
    """Hear Ctrl-C, and have Ray's workers work beside the other tests.

    In the background of a script a shell has its children ignore Ctrl-C. Ray runs its workers at niceness 15, so on two
    cores they would get next to nothing of the time while tests that compute run beside them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RAY_worker_niceness", "0")
