"""Ctrl-C in two steps: the first stops the run cleanly, the second ends the process immediately.

SIGTERM has the same effect as Ctrl-C. Batch systems, ``ray job stop`` and machines that shut down send it. SIGHUP,
which a closed terminal sends, stops the run cleanly too, unless it is ignored: under ``nohup``, the run goes on.
SIGHUP never ends the process immediately, because a shell and the system both send it when a terminal is closed.
"""

import contextlib
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

EXIT_CODE = 130
"""Conventional exit code of a process that Ctrl-C has ended."""

STOPPED = "\nstopped; finished work is kept. To go on, run the same command again."
"""What a command says when Ctrl-C ends it. This is also true for commands that start from the beginning."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_SHOW_CURSOR = b"\x1b[?25h"


@contextlib.contextmanager
def two_step_interrupt(on_first: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C in the block call ``on_first`` and raise ``KeyboardInterrupt``; the second ends the process.

    ``on_first`` reports that stopping has begun. It runs in a signal handler, so it must not wait for a lock.

    Native code can lose a ``KeyboardInterrupt``; then the block raises another one at its end, and
    :func:`raise_if_interrupted` raises one earlier.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    caught = [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]

    def first(number: int, frame: object) -> None:
        for each in caught:
            signal.signal(each, signal.SIG_IGN if each == signal.SIGHUP else exit_immediately)
        _leave_closed_terminal()
        on_first()
        raise KeyboardInterrupt

    before = {each: signal.signal(each, first) for each in caught}
    try:
        yield
        raise_if_interrupted()
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def raise_if_interrupted() -> None:
    """Raise ``KeyboardInterrupt`` if Ctrl-C was pressed in the current block of :func:`two_step_interrupt`.

    Call this between two steps of long work. Cython, for example, ignores a ``KeyboardInterrupt`` that is raised while
    a Cython module is imported. A grid then said that it was stopping, and ran to its end.
    """
    if signal.getsignal(signal.SIGINT) is exit_immediately:
        raise KeyboardInterrupt


def _leave_closed_terminal() -> None:
    """Discard the output that would go to a closed terminal: an error of writing there would end the clean stop."""
    for stream in (1, 2):
        try:
            os.write(stream, b"")
        except OSError:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream)
            os.close(null)


def exit_immediately(number: int, frame: object) -> None:
    """End this process without cleanup. No result is damaged, because only complete files get their final name."""
    with contextlib.suppress(OSError):  # the terminal is closed
        if sys.stdout.isatty():
            os.write(sys.stdout.fileno(), _SHOW_CURSOR)
        os.write(sys.stderr.fileno(), f"\nstopped immediately; to go on: {command_line()}\n".encode())
    os._exit(EXIT_CODE)


def command_line() -> str:
    """Return the command line of this process in a form that a shell accepts."""
    program = Path(sys.argv[0])
    words = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    return shlex.join([*words, *sys.argv[1:]])
