"""A cache on this machine's disk, so that each file of a store is downloaded once for all processes of the machine.

``BOLT_CACHE`` names the folder (``~/.cache/bolt`` by default), ``BOLT_CACHE_SIZE`` its size limit::

    files/ab/abcd...         a file's content under its sha256, read-only; its access time is the time of the last use
    files/ab/abcd....lock    locked while the file is downloaded, checked or removed
    processes/bolt-cache-*/  one folder per process: hard links to the files in use, and unfinished downloads
    stores/                  the mirror of reports, adapters and results of remote stores

A file to which a process has a link is in use and is not removed. The folders of processes that have ended are removed.
If ``BOLT_CACHE`` is set, a store in a folder is read through the cache too.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from orchestrator.store.errors import DISK_ERRORS, StoreUnavailable
from orchestrator.store.files import FOLDER, NO_LINKS, cache_folder
from orchestrator.util.errors import one_line
from orchestrator.util.identity import file_digest
from orchestrator.util.locks import LockHeld, file_lock
from orchestrator.util.scratch import ScratchFolder, remove_abandoned
from orchestrator.util.units import human_bytes, parse_bytes

SIZE = "BOLT_CACHE_SIZE"

FETCH_ATTEMPTS = 2
"""After this number of downloads with a wrong checksum, the file counts as corrupt in the store."""

_FULL = (errno.ENOSPC, errno.EDQUOT)

_VERIFIED = 1_000_000_000
"""Modification time, in seconds since the epoch, that marks a file with a verified checksum. A write changes it."""

_KIND = "cache"


class ChecksumMismatch(Exception):
    """A file was downloaded several times, and never had the checksum that the artifact's manifest states."""


def node_cache() -> NodeCache:
    """Return the cache of this machine. Raises ``UserError`` for an invalid ``BOLT_CACHE_SIZE``."""
    size = os.environ.get(SIZE)
    return _of_process(cache_folder(), parse_bytes(size, SIZE) if size else None, os.getpid())


@lru_cache(maxsize=4)
def _of_process(folder: Path, limit: int | None, process: int) -> NodeCache:
    return NodeCache(folder, limit)


class NodeCache:
    """A folder of files that processes share.

    If the files exceed ``limit`` bytes, files that no process uses are removed, the longest unused first.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self._root, self._limit = root, limit
        self._processes = root / "processes"
        with self._translated_errors():
            self._processes.mkdir(parents=True, exist_ok=True)
            self._own = ScratchFolder(_KIND, self._processes).path

    def get(self, digest: str, size: int, fetch: Callable[[Path], None]) -> Path:
        """Return the path of the file with this sha256 and size in bytes, valid until this process ends.

        If the cache lacks the file, ``fetch`` writes it to the given path. Only one process of the machine at a time
        fetches it.

        Raises :class:`ChecksumMismatch` if every download has a wrong checksum, and ``StoreUnavailable`` if the disk is
        full.
        """
        link = self._own / digest
        if link.exists():
            return link
        path = self._path(digest)
        with self._translated_errors(), file_lock(_lock_of(path), wait=True):
            if not _is_intact(path, size, digest):
                self._fill(path, digest, size, fetch)
            _mark_verified(path)
            return _link(path, link)

    def put(self, built: Path, digest: str) -> None:
        """Move a file from a folder of :meth:`scratch` into the cache."""
        path = self._path(digest)
        with self._translated_errors(), file_lock(_lock_of(path), wait=True):
            if not path.exists():
                _move_into_cache(built, path)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Make a temporary folder on the cache's disk for the block.

        If this process is killed, another process removes the folder later.
        """
        with self._translated_errors():
            folder = Path(tempfile.mkdtemp(dir=self._own))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def evict(self, needed: int) -> int:
        """Remove unused files, the longest unused first, until ``needed`` bytes are freed; return the freed bytes."""
        remove_abandoned(_KIND, self._processes)
        freed = 0
        for _, size, path in sorted(self._contents()):
            if freed >= needed:
                break
            with contextlib.suppress(LockHeld, FileNotFoundError), file_lock(_lock_of(path)):
                if path.stat().st_nlink == 1:
                    path.unlink()
                    freed += size
        return freed

    def _path(self, digest: str) -> Path:
        return self._root / "files" / digest[:2] / digest

    def _fill(self, path: Path, digest: str, size: int, fetch: Callable[[Path], None]) -> None:
        for _ in range(FETCH_ATTEMPTS):
            with self.scratch() as folder:
                part = folder / digest
                if self._limit is not None:  # files in use stay, so the cache can exceed the limit
                    self.evict(sum(used for _, used, _ in self._contents()) + size - self._limit)
                try:
                    fetch(part)
                except OSError as error:  # if the disk is full, remove unused files and try once more
                    if error.errno not in _FULL or not self.evict(size):
                        raise
                    fetch(part)
                if _is_intact(part, size, digest):
                    _move_into_cache(part, path)
                    return
        raise ChecksumMismatch

    def _contents(self) -> Iterator[tuple[float, int, Path]]:
        """Yield the time of last use, the size in bytes and the path of every file."""
        for path in self._root.glob("files/*/*"):
            with contextlib.suppress(FileNotFoundError):  # another process may have removed the file
                if path.suffix != ".lock":
                    yield path.stat().st_atime, path.stat().st_size, path

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of the cache's disk into :class:`StoreUnavailable`. Errors of the store are passed on."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if isinstance(error, StoreUnavailable) and error.errno not in _FULL:
                raise
            reason = DISK_ERRORS.get(error.errno or 0) or one_line(error)
            used = human_bytes(sum(size for _, size, _ in self._contents()))
            what = f"this machine's cache cannot store another file: {reason}"
            hint = f"it holds {used}; files in use are kept. Set {FOLDER} to a folder on a larger disk"
            raise StoreUnavailable(what, where=str(self._root), hint=hint) from error


def _lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _link(path: Path, link: Path) -> Path:
    """Make a hard link to a cached file and return it.

    Without hard links, the path of the cached file is returned, and another process may remove the file.
    """
    try:
        os.link(path, link)
    except OSError as error:
        if error.errno in NO_LINKS:
            return path
        if error.errno != errno.EEXIST:  # EEXIST: another thread has made the link
            raise
    return link


def _is_intact(path: Path, size: int, digest: str) -> bool:
    """Return whether the file exists with this content. An unchanged, verified file is not read again."""
    with contextlib.suppress(FileNotFoundError):
        found = path.stat()
        return found.st_size == size and (found.st_mtime == _VERIFIED or file_digest(path) == digest)
    return False


def _mark_verified(path: Path) -> None:
    """Set a file's modification time to the mark :data:`_VERIFIED`, and its access time to now."""
    os.utime(path, (time.time(), _VERIFIED))


def _move_into_cache(part: Path, path: Path) -> None:
    part.chmod(0o444)
    _mark_verified(part)
    os.replace(part, path)
