"""Files of a store on this machine's own disk, each fetched once for all processes of the machine.

``BOLT_CACHE`` names the folder (``~/.cache/bolt`` by default), ``BOLT_CACHE_SIZE`` how large it may become::

    files/ab/abcd...         a file's content under its sha256, read-only
    files/ab/abcd....stamp   locked while it is fetched; holds what the file looked like when its content was checked;
                             its time is when the file was last asked for
    users/  parts/  guard    who uses what: cache_users.py
    stores/                  copies of reports, adapters and results: copies.py

What a living process was given is never removed, so that a path stays good while its process runs.
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
"""So often is a file fetched whose content is not what it should be, before it counts as corrupt in the store."""

_FULL = (errno.ENOSPC, errno.EDQUOT)


class ChecksumMismatch(Exception):
    """A file of the store, fetched more than once, is not what its manifest says."""


def wanted() -> bool:
    """Whether the user has named a cache, so that a store that is a folder is read through it too."""
    return bool(os.environ.get(FOLDER))


def node_cache() -> NodeCache:
    """This process's view of this machine's cache. Raises ``UserError`` for a size that is none."""
    folder = Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "bolt").absolute()
    size = os.environ.get(SIZE)
    return _of_process(folder, parse_bytes(size, SIZE) if size else None, os.getpid())


@lru_cache(maxsize=4)
def _of_process(folder: Path, limit: int | None, process: int) -> NodeCache:
    return NodeCache(folder, limit)


class NodeCache:
    """A folder of contents that processes share.

    Args:
        root: the folder.
        limit: bytes it may take; beyond it the longest unused make room, as far as nobody uses them.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root, self.limit = root, limit
        self._users = CacheReferences(root)
        self._known: dict[str, Path] = {}

    def get(self, digest: str, size: int, fetch: Callable[[Path], None]) -> Path:
        """The file with this sha256 and so many bytes, fetched unless it is there.

        Args:
            digest, size: of the content.
            fetch: writes the file to a path; called by one process of the machine at a time.

        Raises :class:`ChecksumMismatch` when what is fetched is something else, every time; ``StoreUnavailable`` when
        there is no room for it.
        """
        known = self._known.get(digest)
        if known is not None and known.exists():
            return known
        with self._usable(), self._kept(digest) as (path, stamp):
            if not _as_stamped(path, stamp, size):
                if not _has(path, size, digest):
                    self._fill(path, digest, size, fetch)
                _stamp(path, stamp)
            os.utime(stamp)
        self._known[digest] = path
        return path

    def put(self, made: Path, digest: str) -> None:
        """Take over a file that was made on this machine, in :meth:`scratch`."""
        with self._usable(), self._kept(digest) as (path, stamp):
            if not path.exists():
                made.chmod(0o444)
                os.replace(made, path)
                _stamp(path, stamp)
        self._known[digest] = path

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder on the cache's disk, removed when the block ends, or some time after its process was killed."""
        folder = self._users.part()
        with self._usable():
            self._users.note()
            folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def evict(self, wanted: int) -> int:
        """Remove the longest unused contents until ``wanted`` bytes are freed; returns the bytes that were."""
        with self._users.guarded(fcntl.LOCK_EX):
            used, freed = self._users.in_use(), 0
            for _, size, path in sorted(self._contents()):
                if freed >= wanted:
                    break
                if path.name not in used:
                    path.unlink(missing_ok=True)
                    freed += size
        return freed

    # -- one content -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _kept(self, digest: str) -> Iterator[tuple[Path, Path]]:
        """Note a content as this process's own, and hold its stamp: (where it is or will be, the stamp)."""
        path = self.root / "files" / digest[:2] / digest
        stamp = path.with_name(f"{digest}.stamp")
        self._users.note(digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(stamp, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
            yield path, stamp
        finally:
            os.close(held)

    def _fill(self, path: Path, digest: str, size: int, fetch: Callable[[Path], None]) -> None:
        for _ in range(FETCH_ATTEMPTS):
            part = self._users.part(digest)
            try:
                part.parent.mkdir(parents=True, exist_ok=True)
                self._make_room(size)
                self._fetch(part, size, fetch)
                if _has(part, size, digest):
                    part.chmod(0o444)
                    os.replace(part, path)
                    return
            finally:
                part.unlink(missing_ok=True)
        raise ChecksumMismatch

    def _fetch(self, part: Path, size: int, fetch: Callable[[Path], None]) -> None:
        """Fetch; on a disk that is full, room is made and it is tried once more."""
        try:
            fetch(part)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            part.unlink(missing_ok=True)
            if not self.evict(size):
                raise self._unusable(error) from error
            fetch(part)

    @contextlib.contextmanager
    def _usable(self) -> Iterator[None]:
        """Inside, what is wrong with the cache's disk says so; what is wrong with the store is passed on."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            if isinstance(error, StoreUnavailable) and error.errno not in _FULL:
                raise
            raise self._unusable(error) from error

    def _make_room(self, size: int) -> None:
        if self.limit is None:
            return
        over = sum(one for _, one, _ in self._contents()) + size - self.limit
        if over > 0:
            self.evict(over)  # as far as it goes: what is in use stays

    def _unusable(self, error: OSError) -> StoreUnavailable:
        reason = DISK_ERRORS.get(error.errno or 0) or one_line(error)
        takes = human_bytes(sum(size for _, size, _ in self._contents()))
        return StoreUnavailable(
            f"this machine's cache cannot take another file: {reason}",
            where=str(self.root),
            hint=f"it holds {takes}, and what running processes use stays; {FOLDER} names a folder on a larger disk",
        )

    # -- all of them -----------------------------------------------------------------------------------------------

    def _contents(self) -> Iterator[tuple[float, int, Path]]:
        """(when it was last asked for, bytes, path) of every content."""
        for folder in entries(self.root / "files"):
            for path in entries(folder):
                with contextlib.suppress(FileNotFoundError):  # another process makes room as well
                    if path.suffix != ".stamp":
                        asked = path.with_name(f"{path.name}.stamp").stat().st_mtime
                        yield asked, path.stat().st_size, path


def sha256(path: Path) -> str:
    """The sha256 of a file's content, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _has(path: Path, size: int, digest: str) -> bool:
    """Whether a file is there with this content."""
    try:
        return path.stat().st_size == size and sha256(path) == digest
    except FileNotFoundError:
        return False


def _look(path: Path) -> str:
    found = path.stat()
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"


def _as_stamped(path: Path, stamp: Path, size: int) -> bool:
    """Whether a file is the one whose content was checked: nothing was written into it since."""
    try:
        return path.stat().st_size == size and _look(path) == stamp.read_text()
    except FileNotFoundError:
        return False


def _stamp(path: Path, stamp: Path) -> None:
    with contextlib.suppress(OSError):  # on a full disk it is checked again the next time
        stamp.write_text(_look(path))
