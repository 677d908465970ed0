"""Which processes use which files of a machine's cache, so that no file in use is removed.

Each process locks ``users/<process>`` while it lives and lists there the files it was given; ``parts/<process>-...`` is
what it downloads or builds. A process takes the lock ``guard`` shared to add a reference, and whoever removes files
takes it exclusively. So a file that a process has listed before looking for it stays.
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
    """The references of all processes to the files of a cache. Adds those of this process."""

    def __init__(self, root: Path) -> None:
        self._root, self.name = root, f"{os.getpid()}.{uuid.uuid4().hex[:8]}"
        self._record = -1
        self._registering = threading.Lock()

    def part(self, name: str = "") -> Path:
        """A path for something that this process downloads or builds."""
        return self._root / "parts" / f"{self.name}-{name or uuid.uuid4().hex[:8]}"

    def add(self, digest: str = "") -> None:
        """Reference a file, before looking whether it is there. Without a digest it only registers the process."""
        with self._registering:
            if self._record < 0:
                self._register()
        if digest:
            with self.locked(fcntl.LOCK_SH):
                os.write(self._record, f"{digest}\n".encode())

    def _register(self) -> None:
        with self.locked(fcntl.LOCK_EX):
            self.in_use()  # removes what dead processes left
            (self._root / "users").mkdir(parents=True, exist_ok=True)
            record = os.open(self._root / "users" / self.name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            fcntl.flock(record, fcntl.LOCK_EX)
            self._record = record

    def in_use(self) -> set[str]:
        """Digests that living processes reference. Removes what dead ones left; the lock must be held."""
        used: set[str] = set()
        alive = {self.name}
        for record in entries(self._root / "users"):
            if record.name == self.name or not _is_unlocked(record):
                alive.add(record.name)
                used.update(record.read_text().split())
            else:
                record.unlink(missing_ok=True)
        for part in entries(self._root / "parts"):
            if part.name.partition("-")[0] not in alive:
                shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
        return used

    @contextlib.contextmanager
    def locked(self, mode: int) -> Iterator[None]:
        """Hold the lock, in ``fcntl``'s mode: ``LOCK_SH`` to add references, ``LOCK_EX`` to remove files."""
        self._root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._root / "guard", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, mode)
            yield
        finally:
            os.close(descriptor)


def _is_unlocked(record: Path) -> bool:
    try:
        descriptor = os.open(record, os.O_RDWR)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def entries(folder: Path) -> list[Path]:
    """What is in a folder; empty if there is no such folder."""
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
