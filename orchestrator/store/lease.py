"""A lease on a grid, so that only one driver runs it at a time, whatever the store is on.

A driver writes ``locks/GRID.lease``, which names its process, and renews it every ``RENEW_SECONDS``. A lease is free if
its process has ended on this machine, if it was not renewed for ``STALE_SECONDS``, or, because clocks differ, if it was
watched for so long and did not change. Two drivers at once would only waste time: results are written whole, and both
would write the same.
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
"""An owner on another machine that has not renewed its lease for so long counts as dead."""

RENEW_SECONDS = 20.0

POLL_SECONDS = 2.0
"""Interval at which another machine's lease is read while it is watched."""

SETTLE_SECONDS = 1.0
"""Pause between writing a lease and reading it back: another process that writes at the same time is done by then."""


def _machine() -> str:
    """Return this boot of this machine, and the namespace of its process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on macOS
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


class Owner(BaseModel):
    """A process that owns something in a store.

    Attributes:
        host, machine: the machine's name, and a text that differs for each boot of it and each container on it.
        pid, started: the process.
        token: identifies this one owner.
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
        """Return the owner that a file names; ``None`` if there is no such file, or if it is damaged."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return cls.model_validate_json(files.read(name))
        return None

    def content(self) -> bytes:
        """Return the content of this owner's file, renewed now."""
        return self.model_copy(update={"renewed": time.time()}).model_dump_json(indent=1).encode()

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether this process can see if that one is alive: same machine, same boot, same container."""
        return self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has ended; for one on another machine, whether its lease is stale by this clock."""
        return has_ended(self.pid, self.started) if self.is_here else time.time() - self.renewed > STALE_SECONDS


@contextlib.contextmanager
def grid_lease(files: Files, grid: str, notify: Callable[[str], None] = lambda message: None) -> Iterator[None]:
    """Own the grid in the store for the block, and renew the lease from a thread.

    A grid whose last driver was killed is taken over, and ``notify`` is called with a line about it. If the last driver
    was on another machine and may be alive, its lease is watched first. Raises ``UserError`` when another process owns
    the grid.
    """
    name, mine, ended = f"locks/{grid}.lease", Owner(), threading.Event()
    root = Path(files.root) if files.is_local else None
    is_new = root is not None and not root.exists()
    if files.create(name, mine.content()):
        settle = root is None
    else:
        former = _wait_until_free(files, name, grid, notify)
        settle = root is None or former is None or not former.is_here
        files.write(name, mine.content())
    time.sleep(SETTLE_SECONDS if settle else 0.0)
    if (owner := Owner.read(files, name)) is not None and owner.token != mine.token:
        raise _owned_by(owner, files, grid)

    def renew() -> None:
        while not ended.wait(RENEW_SECONDS):
            with contextlib.suppress(Exception):  # a store that is unreachable for a while is tried again
                now = Owner.read(files, name)
                if now is not None and now.token != mine.token:
                    notify(f"{grid}: {now} has taken it over; this process continues, and both do the same work")
                    return
                files.write(name, mine.content())

    thread = threading.Thread(target=renew, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(RENEW_SECONDS / 2)  # not longer: if the store does not answer, the lease becomes stale
        with contextlib.suppress(Exception):  # it becomes stale by itself
            owner = Owner.read(files, name)
            if owner is not None and owner.token == mine.token:
                files.remove(name)
            if root is not None and [path.name for path in root.iterdir()] == ["locks"]:  # nothing was written
                (root / "locks").rmdir()
                if is_new:
                    root.rmdir()


def _wait_until_free(files: Files, name: str, grid: str, notify: Callable[[str], None]) -> Owner | None:
    """Wait until the lease is free, and return its last owner. Raises ``UserError`` if the owner is alive."""
    owner = Owner.read(files, name)
    if owner is None:  # a damaged lease
        return None
    if not owner.is_gone():
        if owner.is_here:
            raise _owned_by(owner, files, grid)
        notify(f"{grid}: {owner} ran it last and has not reported its end; watching whether it is alive")
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
    return UserError(
        f"{owner} is running or syncing grid {grid} in {files.url}",
        hint="`python -m orchestrator status` shows how far it is",
    )
