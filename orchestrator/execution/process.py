"""Settings of this process that are changed for a block or read in a worker: signals, environment, output."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.util.interrupt import SIGNALS, exit_immediately


@contextlib.contextmanager
def delay_interrupt() -> Iterator[None]:
    """Deliver the first Ctrl-C at the end of the block; a second one acts at once. SIGTERM ends the block.

    SIGHUP acts at the end of the block, however often it comes. It does not reach processes that start in the block: a
    closed terminal would otherwise end the processes of Ray before this process has stopped the run.

    Ray does not survive an interrupt while it starts or ends: processes stay behind, or this process crashes. Ray also
    replaces this process's handler for SIGTERM. Ray's handler raises ``SystemExit`` with code 15. This function catches
    such an exception, restores this process's own handler and sends this process a SIGTERM again.
    """
    before = {each: signal.getsignal(each) for each in SIGNALS}
    stopping = before[signal.SIGINT] is exit_immediately  # while the run stops, the next Ctrl-C must not wait
    if stopping or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending, terminated = False, False

    def remember(number: int, frame: object) -> None:
        nonlocal pending
        pending = True
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for each in (signal.SIGINT, signal.SIGHUP):
        if before[each] is not signal.SIG_IGN:
            signal.signal(each, remember)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    except SystemExit as ended:
        if ended.code != signal.SIGTERM:
            raise
        terminated = True
    finally:
        for each, handler in before.items():  # also for SIGTERM, whose handler Ray has replaced
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if pending or terminated:
        signal.raise_signal(signal.SIGTERM if terminated else signal.SIGINT)


@contextlib.contextmanager
def environment_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for the block, in this process and in those it starts."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


@contextlib.contextmanager
def standard_error_to(file: int) -> Iterator[None]:
    """Send this process's standard error to a file descriptor during the block.

    Ray's native code writes messages to standard error, and no setting of Ray sends them elsewhere.
    """
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def worker_log() -> str:
    """Return the path of the file that holds this worker's output; empty if the output does not go to a file."""
    with contextlib.suppress(OSError):
        target = os.readlink("/proc/self/fd/2")
        if Path(target).is_file():
            return target
    return ""
