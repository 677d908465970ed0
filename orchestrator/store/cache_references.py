"""Who uses what of a machine's cache, so that nothing is taken from under a process that lives.

``users/<process>`` is locked by a process while it lives and lists the contents it was given, ``parts/<process>-...``
is what it fetches or builds. ``guard`` is shared by those who note a content down and exclusive to the one who removes
some, so that what is noted before one looks for it stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path


class CacheReferences:
    """The processes that use a cache, this one among them."""

    def __init__(self, root: Path) -> None:
        self._root, self.name = root, f"{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self._record = -1
        self._beginning = threading.Lock()

    def part(self, of: str = "") -> Path:
        """A path for something that this process fetches or builds."""
        return self._root / "parts" / f"{self.name}-{of or uuid.uuid4().hex[:8]}"

    def note(self, digest: str = "") -> None:
        """Note that this process uses a content, before it looks whether it is there."""
        with self._beginning:
            if self._record < 0:
                self._begin()
        if digest:
            with self.guarded(fcntl.LOCK_SH):
                os.write(self._record, f"{digest}\n".encode())

    def _begin(self) -> None:
        with self.guarded(fcntl.LOCK_EX):
            self.in_use()  # for what dead processes left
            (self._root / "users").mkdir(parents=True, exist_ok=True)
            record = os.open(self._root / "users" / self.name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            fcntl.flock(record, fcntl.LOCK_EX)
            self._record = record

    def in_use(self) -> set[str]:
        """Contents that living processes use. Removes what dead ones left behind; the guard must be held."""
        used: set[str] = set()
        alive = {self.name}
        for record in entries(self._root / "users"):
            if record.name == self.name or not _is_free(record):
                alive.add(record.name)
                used.update(record.read_text().split())
            else:
                record.unlink(missing_ok=True)
        for part in entries(self._root / "parts"):
            if part.name.partition("-")[0] not in alive:
                shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
        return used

    @contextlib.contextmanager
    def guarded(self, how: int) -> Iterator[None]:
        """Hold the guard, shared or exclusively."""
        self._root.mkdir(parents=True, exist_ok=True)
        held = os.open(self._root / "guard", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(held, how)
            yield
        finally:
            os.close(held)


def _is_free(record: Path) -> bool:
    """Whether nobody holds the lock on a file."""
    try:
        held = os.open(record, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(held)
    return True


def entries(folder: Path) -> list[Path]:
    """What is in a folder; nothing where there is none."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
