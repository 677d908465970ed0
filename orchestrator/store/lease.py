"""One driver per grid and store, on whatever the store lies.

In a folder a lock file dies with its process. That does not reach other machines on every shared file system, and not
at all in an object store, so a driver also leaves a lease, ``locks/GRID.lease``: who it is, renewed every
``RENEW_SECONDS``. A lease is free when its process is gone from this machine, when it was not renewed for
``STALE_SECONDS``, or, since clocks differ, when it was watched for so long and did not change.

Two drivers would cost time and nothing else: results are written whole, and both would write the same.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from orchestrator.store import Store
from orchestrator.store.files import Files
from orchestrator.store.lease_owner import STALE_SECONDS, LeaseOwner
from orchestrator.store.remote import store_unavailable
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.units import human_duration

RENEW_SECONDS = 20.0

LOOK_SECONDS = 2.0
"""Between two looks at a lease that may have been left behind."""

SETTLE_SECONDS = 1.0
"""After taking a lease without the store's word that no other did: the other would have written by then."""

Say = Callable[[str], None]


def silent(line: str) -> None:
    """Say nothing."""


@contextlib.contextmanager
def grid_lease(store: Store, grid: str, say: Say = silent) -> Iterator[None]:
    """Hold the grid in the store, so that two drivers do not run it at a time.

    A grid whose last driver was killed is taken over, which is said. One whose last driver was on another machine, and
    may still be at work, is watched until that shows.

    Raises ``UserError`` when another process holds it.
    """
    with contextlib.ExitStack() as stack:
        if store.files.is_local:
            lock = store.files.local_path(f"locks/{grid}.lock")
            try:
                stack.enter_context(file_lock(lock))
            except LockHeld as process:
                raise _taken(store, grid, f"process {process}") from None
            except OSError as error:
                raise store_unavailable(error, str(lock)) from None
        lease = Lease(store.files, f"locks/{grid}.lease")
        taken_over = lease.take(lambda left: say(f"{grid}: {left}"))
        if isinstance(taken_over, LeaseOwner):
            raise _taken(store, grid, taken_over.summary)
        stack.callback(lease.release)
        stack.enter_context(lease.renewed(lambda said: say(f"{grid}: {said}")))
        yield


def _taken(store: Store, grid: str, who: str) -> UserError:
    return UserError(
        f"grid {grid} is being run, or synced, in {store.url} by {who}",
        hint="`python -m orchestrator status` shows how far it is",
    )


class Lease:
    """A name in a store that one process holds at a time."""

    def __init__(self, files: Files, name: str) -> None:
        self._files, self._name = files, name
        self._mine = LeaseOwner()

    def take(self, say: Say = silent) -> LeaseOwner | None:
        """Take the lease; ``None``, or the one who holds it and is at work.

        Raises :class:`orchestrator.store.remote.StoreUnavailable` for a store that cannot be written to.
        """
        if self._files.create(self._name, self._text()):
            return self._confirmed()
        found = self._read()
        if found is not None and not found.is_gone():
            if found.is_here:
                return found
            say(f"{found.summary} ran it last and has not said that it ended; looking whether it is at work")
            if (later := self._watched(found)) is not None:
                return later
        if found is not None:
            ago = human_duration(max(0.0, time.time() - found.renewed))
            say(f"going on from {found.summary}, which was last at work {ago} ago")
        self._files.write(self._name, self._text())
        return self._confirmed(alone=found is not None and found.is_here)

    def _watched(self, found: LeaseOwner) -> LeaseOwner | None:
        """Look at another machine's lease until it changes (who holds it), or has not for long (``None``)."""
        until = time.monotonic() + STALE_SECONDS
        while time.monotonic() < until and not found.is_gone():
            time.sleep(LOOK_SECONDS)
            now = self._read()
            if now is None:
                return None
            if now.renewed != found.renewed or now.token != found.token:
                return now
        return None

    def _confirmed(self, alone: bool = True) -> LeaseOwner | None:
        if not (self._files.is_local and alone):
            time.sleep(SETTLE_SECONDS)
        found = self._read()
        return None if found is None or found.token == self._mine.token else found

    @contextlib.contextmanager
    def renewed(self, say: Say = silent) -> Iterator[None]:
        """Renew the lease from a thread until the block ends."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(RENEW_SECONDS):
                with contextlib.suppress(Exception):  # a store that is away for a while is tried again
                    found = self._read()
                    if found is not None and found.token != self._mine.token:
                        say(f"{found.summary} has taken it over; this process goes on, and both do the same work")
                        return
                    self._files.write(self._name, self._text())

        thread = threading.Thread(target=renew, name="lease", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(RENEW_SECONDS / 2)  # a store that does not answer holds nobody up; the lease lapses

    def release(self) -> None:
        """Give the lease up, unless somebody else has it by now."""
        with contextlib.suppress(Exception):  # it lapses by itself
            found = self._read()
            if found is not None and found.token == self._mine.token:
                self._files.remove(self._name)

    def _text(self) -> bytes:
        return replace(self._mine, renewed=time.time()).to_json()

    def _read(self) -> LeaseOwner | None:
        """Who holds it; ``None`` when nobody does, or nobody knows who."""
        with contextlib.suppress(FileNotFoundError):
            return LeaseOwner.from_json(self._files.read(self._name))
        return None
