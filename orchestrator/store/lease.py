"""A lease on a grid, so that only one process runs the grid at a time, on any kind of store.

This process, the driver of the grid, writes its machine and process number into ``locks/GRID.lease``, and renews the
lease every ``RENEW_SECONDS``. A lease is free if its process ran on this machine and has ended, or if it was not
renewed for ``STALE_SECONDS``. Clocks differ, so a lease is also free if another process has watched it for
``STALE_SECONDS`` and saw no renewal. Two drivers at once would waste time but do no harm: results are written whole,
and both drivers write the same results.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, Field, PositiveInt

from orchestrator.store.files import Files
from orchestrator.util.errors import UserError
from orchestrator.util.machine import has_ended, process_start_time
from orchestrator.util.units import human_duration

STALE_SECONDS = 120.0
"""An owner on another machine counts as dead if it has not renewed its lease for this time."""

RENEW_SECONDS = 20.0

POLL_SECONDS = 2.0
"""Interval at which a watched lease of another machine is read."""

SETTLE_SECONDS = 1.0
"""Pause between writing a lease and reading it back. Processes that write the same lease at the same time all finish
writing within the pause, so that all of them read the same owner."""


def _machine() -> str:
    """Return a text that identifies the machine, its boot and the namespace of its process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on macOS
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


class Owner(BaseModel):
    """The process that holds a lease or builds an artifact.

    Attributes:
        host: the name of the process's machine.
        machine: a text that differs for each machine, each boot and each container.
        pid, started: number and start time of the process.
        token: a random text that identifies this owner.
        renewed: time of the last renewal, in seconds since the epoch by the owner's clock.
    """

    host: str = Field(default_factory=socket.gethostname)
    machine: str = Field(default_factory=_machine)
    pid: PositiveInt = Field(default_factory=os.getpid)
    started: float = Field(default_factory=process_start_time)
    token: str = Field(default_factory=lambda: uuid.uuid4().hex)
    renewed: float = Field(default_factory=time.time)

    @classmethod
    def read(cls, files: Files, name: str) -> Owner | None:
        """Return the owner recorded in a file; ``None`` if the file does not exist or is damaged."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return cls.model_validate_json(files.read(name))
        return None

    def content(self) -> bytes:
        """Return the content of this owner's file, with the current time as ``renewed``."""
        return self.model_copy(update={"renewed": time.time()}).model_dump_json(indent=1).encode()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether the owner's process was started in the same boot and container as this process.

        Only then can this process look up whether the owner is alive.
        """
        return self.machine == _machine()

    def is_gone(self) -> bool:
        """Return whether the process has ended; on another machine, whether its lease is stale by our clock."""
        return has_ended(self.pid, self.started) if self.is_here else time.time() - self.renewed > STALE_SECONDS


@contextlib.contextmanager
def grid_lease(files: Files, grid: str, notify: Callable[[str], None] = lambda message: None) -> Iterator[None]:
    """Hold the lease on a grid during the block, and renew it from a thread.

    If the process that held the lease was killed, the lease is taken over, and ``notify`` is called with a line about
    it. If that process was on another machine and may be alive, its lease is watched first. Raises ``UserError`` if
    another process holds the lease.
    """
    name, mine, ended = f"locks/{grid}.lease", Owner(), threading.Event()
    root = Path(files.root) if files.is_local else None
    is_new = root is not None and not root.exists()

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # a store can be unreachable for a while
                now = Owner.read(files, name)
                if now is not None and now.token != mine.token:
                    notify(f"{grid}: {now} has taken over this grid; this process continues, and both do the same work")
                    return
                files.write(name, mine.content())

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    try:  # a signal may come as soon as the file is there
        if files.create(name, mine.content()):
            settle = root is None
        else:
            former = _wait_until_free(files, name, grid, notify)
            settle = root is None or former is None or not former.is_here
            files.write(name, mine.content())
        time.sleep(SETTLE_SECONDS if settle else 0.0)
        if (owner := Owner.read(files, name)) is not None and owner.token != mine.token:
            raise _owned_by(owner, files, grid)
        thread.start()
        yield
    finally:
        ended.set()
        if thread.is_alive():  # wait no longer: if the store does not answer, the lease becomes stale anyway
            thread.join(RENEW_SECONDS / 2)
        with contextlib.suppress(Exception):  # a lease that is not removed becomes stale
            owner = Owner.read(files, name)
            if owner is not None and owner.token == mine.token:
                files.remove(name)
            if root is not None and [path.name for path in root.iterdir()] == ["locks"]:  # nothing was written
                (root / "locks").rmdir()
                if is_new:
                    root.rmdir()


def _wait_until_free(files: Files, name: str, grid: str, notify: Callable[[str], None]) -> Owner | None:
    """Wait until the lease is free; return its last owner, or ``None`` for a damaged lease.

    Raises ``UserError`` if the owner is alive.
    """
    if (owner := Owner.read(files, name)) is None:  # a damaged lease
        return None
    if not owner.is_gone():
        if owner.is_here:
            raise _owned_by(owner, files, grid)
        notify(f"{grid}: {owner} ran this grid last and has not reported an end; watching whether the process is alive")
        until, now = time.monotonic() + STALE_SECONDS, Owner.read(files, name)
        while time.monotonic() < until and now is not None and not now.is_gone():
            if (now.renewed, now.token) != (owner.renewed, owner.token):
                raise _owned_by(now, files, grid)
            time.sleep(POLL_SECONDS)
            now = Owner.read(files, name)
    ago = human_duration(max(0.0, time.time() - owner.renewed))
    notify(f"{grid}: taking over from {owner}, which was last alive {ago} ago")
    return owner


def _owned_by(owner: Owner, files: Files, grid: str) -> UserError:
    what = f"{owner} is running or syncing grid {grid} in {files.url}"
    return UserError(what, hint="`python -m orchestrator status` shows how far it is")
