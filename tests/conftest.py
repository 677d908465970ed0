"""What all tests need of the process they run in."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Hear Ctrl-C in the background of a script, too, where a shell has its children ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
