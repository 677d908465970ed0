"""Processes that are started again when they die, and that end when whoever started them does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 60.0
STEADY_SECONDS = 60.0
"""One that has been up for so long is started again after the first pause; of one that dies younger, pauses double."""

STOP_SECONDS = 20.0
_LAST_WORDS = 1500
_PR_SET_PDEATHSIG = 1


@dataclass
class Supervised:
    """One process with a session of its own, so that a Ctrl-C in the terminal does not reach it.

    Attributes:
        name: for people.
        command, environment: no secret is in the command, which every user of the machine can read.
        log: what it prints is added to this file.
        user: to run it as, where this process may choose.
        stop_signal: asks it to end in good order.
        deaths: how often it has died since it was last steady.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    user: str | None = None
    stop_signal: signal.Signals = signal.SIGTERM
    deaths: int = field(default=0, init=False)
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _started: float = field(default=0.0, init=False)
    _not_before: float = field(default=0.0, init=False)

    @property
    def pid(self) -> int | None:
        """The process's number while it is up."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Start it. Raises ``OSError`` when its program cannot be run."""
        asks = int(self.stop_signal)

        def die_with_parent() -> None:  # kill -9 of this process must not leave servers behind
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, asks)

        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                list(self.command),
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",  # not a folder that another user may not enter
                start_new_session=True,
                user=self.user,
                group=None if self.user is None else _group_of(self.user),
                extra_groups=None if self.user is None else [],
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        self._started = time.monotonic()

    def look_after(self, say: Callable[[str], None]) -> None:
        """Start it again if it has died, after a pause that grows while it dies young; says so."""
        now = time.monotonic()
        if self._process is not None and (code := self._process.poll()) is not None:
            self._end_group()
            self._process = None
            steady = now - self._started >= STEADY_SECONDS
            self.deaths = 1 if steady else self.deaths + 1
            pause = min(FIRST_PAUSE_SECONDS * 2 ** min(self.deaths - 1, 10), LONGEST_PAUSE_SECONDS)
            self._not_before = now + pause
            say(f"{self.name} {_how(code)}; started again in {pause:g} s ({self.log})")
        if self._process is None and now >= self._not_before:
            self.start()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """End it in good order, or, when it takes longer, at once."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(self.stop_signal)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._end_group()
        self._process.wait()

    def last_words(self) -> str:
        """The end of what it has printed."""
        try:
            return self.log.read_text(errors="replace")[-_LAST_WORDS:]
        except OSError:
            return ""

    def _end_group(self) -> None:
        """What it has started may outlive it, and hold its port."""
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _group_of(user: str) -> int:
    import pwd

    return pwd.getpwnam(user).pw_gid


def _how(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
