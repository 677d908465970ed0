"""A lease on a grid, so that only one driver runs it at a time, whatever the store is on.

In a folder a lock file is released when its process ends. But locks do not reach other machines on every shared file
system, and an object store has none. So a driver also writes a lease, ``locks/GRID.lease``, that names its process, and
renews it every ``RENEW_SECONDS``. A lease is free if its process has ended on this machine, if it was not renewed for
``STALE_SECONDS``, or, because clocks differ, if it was watched for so long and did not change.

Two drivers at once would only waste time: results are written whole, and both would write the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_type_hints

from orchestrator.store.errors import store_unavailable
from orchestrator.store.files import Files
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.machine import has_ended, process_start_time
from orchestrator.util.units import human_duration

STALE_SECONDS = 120.0
"""An owner on another machine that has not renewed its lease for so long counts as dead."""

RENEW_SECONDS = 20.0

POLL_SECONDS = 2.0
"""Interval at which another machine's lease is read while it is watched."""

SETTLE_SECONDS = 1.0
"""Pause between writing a lease and reading it back: another process that writes at the same time is done by then."""

Notify = Callable[[str], None]


@contextlib.contextmanager
def grid_lease(files: Files, grid: str, notify: Notify = lambda message: None) -> Iterator[None]:
    """Own the grid in the store for the block.

    A grid whose last driver was killed is taken over, and ``notify`` is told. If the last driver was on another machine
    and may be alive, its lease is watched first. Raises ``UserError`` when another process owns the grid.
    """

    def owned(owner: str) -> UserError:
        return UserError(
            f"{owner} is running or syncing grid {grid} in {files.url}",
            hint="`python -m orchestrator status` shows how far it is",
        )

    with contextlib.ExitStack() as stack:
        if files.is_local:
            lock = files.local_path(f"locks/{grid}.lock")
            made = None if Path(files.root).exists() else Path(files.root)
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                raise owned(f"process {process}") from None
            except OSError as error:
                raise store_unavailable(error, str(lock)) from None
            stack.callback(_remove_unused, lock, made)
        lease = Lease(files, f"locks/{grid}.lease", lambda message: notify(f"{grid}: {message}"))
        if (owner := lease.take()) is not None:
            raise owned(owner.summary)
        stack.enter_context(lease.held())
        yield


def _remove_unused(lock: Path, made: Path | None) -> None:
    """Remove the lock file of a store in which nothing was written, and its folder if it was ``made`` for the lock."""
    with contextlib.suppress(OSError):  # another process holds a lease there, or has removed it
        if [path.name for path in lock.parents[1].iterdir()] == ["locks"] and list(lock.parent.iterdir()) == [lock]:
            lock.unlink()
            lock.parent.rmdir()
            if made is not None:
                made.rmdir()


@dataclass(frozen=True)
class LeaseOwner:
    """A process that owns something in a store.

    Attributes:
        host, machine: the machine's name, and a text that differs for each boot of it and each container on it.
        pid, started: the process.
        token: identifies this one lease.
        renewed: time of the last renewal, in seconds since the epoch by the owner's clock.
    """

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=lambda: _machine())
    pid: int = field(default_factory=os.getpid)
    started: float = field(default_factory=process_start_time)
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    renewed: float = field(default_factory=time.time)

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, content: bytes) -> LeaseOwner | None:
        """Return the owner that a lease file names; ``None`` for a file that names none."""
        try:
            data = json.loads(content)
            owner = cls(**{name: kind(data[name]) for name, kind in get_type_hints(cls).items()})
        except (ArithmeticError, ValueError, KeyError, TypeError, RecursionError):
            return None
        return owner if owner.pid > 0 else None

    @property
    def summary(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_here(self) -> bool:
        """Whether this process can see if that one is alive: same machine, same boot, same container."""
        return self.machine == _machine()

    def is_gone(self) -> bool:
        """Whether the process has ended; for one on another machine, whether its lease is stale by this clock."""
        return has_ended(self.pid, self.started) if self.is_here else time.time() - self.renewed > STALE_SECONDS


class Lease:
    """A name in a store that one process owns at a time. ``notify`` is told what becomes of other owners."""

    def __init__(self, files: Files, name: str, notify: Notify) -> None:
        self._files, self._name, self._notify = files, name, notify
        self._self = LeaseOwner()

    def take(self) -> LeaseOwner | None:
        """Take the lease; returns ``None`` on success, else the living process that owns it."""
        if self._files.create(self._name, self._text()):
            return self._confirm()
        owner = self._read()
        if owner is not None and not owner.is_gone():
            if owner.is_here:
                return owner
            self._notify(f"{owner.summary} ran it last and has not reported its end; watching whether it is alive")
            if (later := self._watch(owner)) is not None:
                return later
        if owner is not None:
            ago = human_duration(max(0.0, time.time() - owner.renewed))
            self._notify(f"taking over from {owner.summary}, which was last alive {ago} ago")
        self._files.write(self._name, self._text())
        return self._confirm(settle=owner is None or not owner.is_here)

    def _watch(self, owner: LeaseOwner) -> LeaseOwner | None:
        """Read another machine's lease until it changes; returns its owner, ``None`` if it became stale or free."""
        until = time.monotonic() + STALE_SECONDS
        while time.monotonic() < until and not owner.is_gone():
            time.sleep(POLL_SECONDS)
            now = self._read()
            if now is None:
                return None
            if now.renewed != owner.renewed or now.token != owner.token:
                return now
        return None

    def _confirm(self, settle: bool = False) -> LeaseOwner | None:
        """Read the lease back; ``None`` if it is this process's. Another process may have written it just then."""
        if settle or not self._files.is_local:
            time.sleep(SETTLE_SECONDS)
        owner = self._read()
        return None if owner is None or owner.token == self._self.token else owner

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Renew the lease from a thread until the block ends, and remove it then unless another process owns it."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_SECONDS):
                with contextlib.suppress(Exception):  # a store that is unreachable for a while is tried again
                    owner = self._read()
                    if owner is not None and owner.token != self._self.token:
                        both = "this process continues, and both do the same work"
                        self._notify(f"{owner.summary} has taken it over; {both}")
                        return
                    self._files.write(self._name, self._text())

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(RENEW_SECONDS / 2)  # not longer: if the store does not answer, the lease becomes stale
            with contextlib.suppress(Exception):  # it becomes stale by itself
                owner = self._read()
                if owner is not None and owner.token == self._self.token:
                    self._files.remove(self._name)

    def _text(self) -> bytes:
        return replace(self._self, renewed=time.time()).to_json()

    def _read(self) -> LeaseOwner | None:
        """Return the owner; ``None`` if there is no lease, or if its file is damaged."""
        with contextlib.suppress(FileNotFoundError):
            return LeaseOwner.from_json(self._files.read(self._name))
        return None


def _machine() -> str:
    """Return this boot of this machine, and the namespace of its process numbers."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not on macOS
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)
