"""A lease on a grid, so that only one driver runs it at a time, whatever the store is on.

In a folder a lock file is released when its process ends. But locks do not reach other machines on every shared file
system, and an object store has none. So a driver also writes a lease, ``locks/GRID.lease``, that names its process, and
renews it every ``RENEW_SECONDS``. A lease is free if its process has ended on this machine, if it was not renewed for
``STALE_SECONDS``, or, because clocks differ, if it was watched for so long and did not change.

Two drivers at once would only waste time: results are written whole, and both would write the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.store import Store
from orchestrator.store.errors import store_unavailable
from orchestrator.store.files import Files
from orchestrator.store.lease_owner import STALE_SECONDS, LeaseOwner
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.units import human_duration

RENEW_SECONDS = 20.0

POLL_SECONDS = 2.0
"""Interval at which another machine's lease is read while it is watched."""

SETTLE_SECONDS = 1.0
"""Pause between writing a lease and reading it back: another process that writes at the same time is done by then."""

Notify = Callable[[str], None]


@contextlib.contextmanager
def grid_lease(store: Store, grid: str, notify: Notify = lambda message: None) -> Iterator[None]:
    """Own the grid in the store for the block.

    A grid whose last driver was killed is taken over, and ``notify`` is told. If the last driver was on another machine
    and may be alive, its lease is watched first. Raises ``UserError`` when another process owns the grid.
    """
    with contextlib.ExitStack() as stack:
        if store.files.is_local:
            lock = store.files.local_path(f"locks/{grid}.lock")
            made = None if Path(store.files.root).exists() else Path(store.files.root)
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                raise _owned(store, grid, f"process {process}") from None
            except OSError as error:
                raise store_unavailable(error, str(lock)) from None
            stack.callback(_remove_unused, lock, made)
        lease = Lease(store.files, f"locks/{grid}.lease")
        owner = lease.take(lambda message: notify(f"{grid}: {message}"))
        if owner is not None:
            raise _owned(store, grid, owner.summary)
        stack.enter_context(lease.held(lambda message: notify(f"{grid}: {message}")))
        yield


def _remove_unused(lock: Path, made: Path | None) -> None:
    """Remove the lock file of a store in which nothing was written, and its folder if it was ``made`` for the lock."""
    with contextlib.suppress(OSError):  # another process holds a lease there, or has removed it
        if [path.name for path in lock.parents[1].iterdir()] == ["locks"] and list(lock.parent.iterdir()) == [lock]:
            lock.unlink()
            lock.parent.rmdir()
            if made is not None:
                made.rmdir()


def _owned(store: Store, grid: str, owner: str) -> UserError:
    return UserError(
        f"{owner} is running or syncing grid {grid} in {store.url}",
        hint="`python -m orchestrator status` shows how far it is",
    )


class Lease:
    """A name in a store that one process owns at a time."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self._self = LeaseOwner()

    def take(self, notify: Notify = lambda message: None) -> LeaseOwner | None:
        """Take the lease; returns ``None`` on success, else the living process that owns it."""
        if self._files.create(self._name, self._text()):
            return self._confirm()
        owner = self._read()
        if owner is not None and not owner.is_gone():
            if owner.is_here:
                return owner
            notify(f"{owner.summary} ran it last and has not reported its end; watching whether it is alive")
            if (later := self._watch(owner)) is not None:
                return later
        if owner is not None:
            ago = human_duration(max(0.0, time.time() - owner.renewed))
            notify(f"taking over from {owner.summary}, which was last alive {ago} ago")
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
    def held(self, notify: Notify) -> Iterator[None]:
        """Renew the lease from a thread until the block ends, and remove it then unless another process owns it."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_SECONDS):
                with contextlib.suppress(Exception):  # a store that is unreachable for a while is tried again
                    owner = self._read()
                    if owner is not None and owner.token != self._self.token:
                        notify(f"{owner.summary} has taken it over; this process continues, and both do the same work")
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
        """The owner; ``None`` if there is no lease, or if its file is damaged."""
        with contextlib.suppress(FileNotFoundError):
            return LeaseOwner.from_json(self._files.read(self._name))
        return None
