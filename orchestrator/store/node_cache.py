"""A cache on this machine's disk: each file of a store is downloaded once for all processes of the machine.

``BOLT_CACHE`` names the folder (``~/.cache/bolt`` by default), ``BOLT_CACHE_SIZE`` its size limit::

    files/ab/abcd...         a file's content under its sha256, read-only
    files/ab/abcd....stamp   locked during the download; holds size, time and inode of the file when its checksum was
                             verified; its own time is that of the last use
    users/  parts/  guard    which process uses which file: cache_references.py
    stores/                  the mirror of reports, adapters and results: local_mirror.py

A file that a living process was given is never removed, so its path stays valid while the process runs.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

from orchestrator.store.cache_references import CacheReferences, entries
from orchestrator.store.remote import DISK_ERRORS, StoreUnavailable
from orchestrator.util.errors import one_line
from orchestrator.util.units import human_bytes, parse_bytes

FOLDER, SIZE = "BOLT_CACHE", "BOLT_CACHE_SIZE"

FETCH_ATTEMPTS = 2
"""Number of downloads with a wrong checksum after which a file counts as corrupt in the store."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class ChecksumMismatch(Exception):
    """Every download of a file has had another checksum than its manifest says."""


def is_configured() -> bool:
    """Whether ``BOLT_CACHE`` is set; then even a store in a folder is read through the cache."""
    return bool(os.environ.get(FOLDER))


def node_cache() -> NodeCache:
    """This process's object for this machine's cache. Raises ``UserError`` for an invalid size."""
    folder = Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "bolt").absolute()
    size = os.environ.get(SIZE)
    return _of_process(folder, parse_bytes(size, SIZE) if size else None, os.getpid())


@lru_cache(maxsize=4)
def _of_process(folder: Path, limit: int | None, process: int) -> NodeCache:
    return NodeCache(folder, limit)


class NodeCache:
    """A folder of files that processes share.

    Args:
        root: the folder.
        limit: bytes. Beyond it, files that no process uses are removed, those unused for longest first.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root, self.limit = root, limit
        self._references = CacheReferences(root)
        self._paths: dict[str, Path] = {}

    def get(self, digest: str, size: int, fetch: Callable[[Path], None]) -> Path:
        """The path of the file with this checksum, downloaded if the cache does not have it.

        Args:
            digest, size: sha256 and bytes of the content.
            fetch: writes the file to a path; called by one process of the machine at a time.

        Raises :class:`ChecksumMismatch` if every download has another checksum, ``StoreUnavailable`` if the disk has
        no room for it.
        """
        path = self._paths.get(digest)
        if path is not None and path.exists():
            return path
        with self._translated_errors(), self._locked_file(digest) as (path, stamp):
            if not _matches_stamp(path, stamp, size):
                if not _has_content(path, size, digest):
                    self._fill(path, digest, size, fetch)
                _write_stamp(path, stamp)
            os.utime(stamp)
        self._paths[digest] = path
        return path

    def put(self, built: Path, digest: str) -> None:
        """Move a file that was made in :meth:`scratch` into the cache."""
        with self._translated_errors(), self._locked_file(digest) as (path, stamp):
            if not path.exists():
                built.chmod(0o444)
                os.replace(built, path)
                _write_stamp(path, stamp)
        self._paths[digest] = path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A temporary folder on the cache's disk. If its process is killed, another process removes it later."""
        folder = self._references.part()
        with self._translated_errors():
            self._references.add()
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def evict(self, needed: int) -> int:
        """Remove unused files, those unused for longest first, until ``needed`` bytes are free; returns bytes freed."""
        with self._references.locked(fcntl.LOCK_EX):
            used, freed = self._references.in_use(), 0
            for _, size, path in sorted(self._contents()):
                if freed >= needed:
                    break
                if path.name not in used:
                    path.unlink(missing_ok=True)
                    freed += size
        return freed

    # -- one file --------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _locked_file(self, digest: str) -> Iterator[tuple[Path, Path]]:
        """Reference a file for this process and lock its stamp; yields the file's path and the stamp's."""
        path = self.root / "files" / digest[:2] / digest
        stamp = path.with_name(f"{digest}.stamp")
        self._references.add(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(stamp, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield path, stamp
        finally:
            os.close(descriptor)

    def _fill(self, path: Path, digest: str, size: int, fetch: Callable[[Path], None]) -> None:
        for _ in range(FETCH_ATTEMPTS):
            part = self._references.part(digest)
            try:
                part.parent.mkdir(parents=True, exist_ok=True)
                self._make_room(size)
                self._fetch(part, size, fetch)
                if _has_content(part, size, digest):
                    part.chmod(0o444)
                    os.replace(part, path)
                    return
            finally:
                part.unlink(missing_ok=True)
        raise ChecksumMismatch

    def _fetch(self, part: Path, size: int, fetch: Callable[[Path], None]) -> None:
        """Download; if the disk is full, remove unused files and try once more."""
        try:
            fetch(part)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            part.unlink(missing_ok=True)
            if not self.evict(size):
                raise self._disk_error(error) from error
            fetch(part)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of the cache's disk into errors that say so; errors of the store are passed on."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if isinstance(error, StoreUnavailable) and error.errno not in _FULL:
                raise
            raise self._disk_error(error) from error

    def _make_room(self, size: int) -> None:
        if self.limit is None:
            return
        excess = sum(used for _, used, _ in self._contents()) + size - self.limit
        if excess > 0:
            self.evict(excess)  # files in use stay, so it may free less

    def _disk_error(self, error: OSError) -> StoreUnavailable:
        reason = DISK_ERRORS.get(error.errno or 0) or one_line(error)
        used = human_bytes(sum(size for _, size, _ in self._contents()))
        return StoreUnavailable(
            f"this machine's cache cannot store another file: {reason}",
            where=str(self.root),
            hint=f"it holds {used}; files that running processes use stay. {FOLDER} names a folder on a larger disk",
        )

    # -- all files ------------------------------------------------------------------------------------------------

    def _contents(self) -> Iterator[tuple[float, int, Path]]:
        """(time of last use, bytes, path) of every file."""
        for folder in entries(self.root / "files"):
            for path in entries(folder):
                with contextlib.suppress(FileNotFoundError):  # another process may be evicting
                    if path.suffix != ".stamp":
                        last_use = path.with_name(f"{path.name}.stamp").stat().st_mtime
                        yield last_use, path.stat().st_size, path


def sha256(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _has_content(path: Path, size: int, digest: str) -> bool:
    """Whether the file exists with this content."""
    try:
        return path.stat().st_size == size and sha256(path) == digest
    except FileNotFoundError:
        return False


def _stamp_of(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"


def _matches_stamp(path: Path, stamp: Path, size: int) -> bool:
    """Whether the file is unchanged since its checksum was verified."""
    try:
        return path.stat().st_size == size and _stamp_of(path) == stamp.read_text()
    except FileNotFoundError:
        return False


def _write_stamp(path: Path, stamp: Path) -> None:
    with contextlib.suppress(OSError):  # on a full disk the checksum is verified again next time
        stamp.write_text(_stamp_of(path))
