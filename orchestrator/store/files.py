"""Files under one root, which is a local folder or any fsspec URL. Every write is atomic.

The driver of ``s3://`` (s3fs) reads endpoint, credentials and options from ``AWS_*`` variables, ``~/.aws``, the
machine's role, or ``FSSPEC_S3_*``.
"""

import contextlib
import errno
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import fsspec

from orchestrator.store.errors import StoreUnavailable, store_unavailable, translate_errors
from orchestrator.util.atomic_files import atomic_file, replacing
from orchestrator.util.errors import UserError, one_line, short_repr

Item = TypeVar("Item")
Value = TypeVar("Value")

FOLDER = "BOLT_CACHE"
"""Environment variable that names the folder of this machine's cache."""

MAX_REQUESTS = 32
"""Largest number of threads in which :meth:`Files.map` sends requests to a remote store."""

CONNECTIONS = 64
"""Largest number of connections to S3 that a process has open at once; botocore's default is ten."""

LARGEST = 256 * 2**20
"""Largest size in bytes of a local file that :meth:`Files.read` reads. Results, manifests and predictions are far
smaller."""

MAX_NAME = 900
MAX_PART = 240
"""Largest lengths in bytes: ``MAX_NAME`` of a path, ``MAX_PART`` of each part of a path. S3 allows paths of 1024 bytes,
and file systems allow parts of 255 bytes. Both limits are lower, because temporary names are longer than final ones."""

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without hard links, such as exFAT and many Windows shares."""


@dataclass(frozen=True)
class FileVersion:
    """The version of a file, which changes whenever the content changes.

    Attributes:
        tag: a remote store's tag of the content (ETag); for a local file, its modification time and inode.
        written: time of the last write in seconds since the epoch; 0 if the store does not tell.
    """

    size: int
    tag: str
    written: float


class Files:
    """A root folder or URL with atomic writes.

    A local file is written under a temporary name beside the target, flushed to disk and then renamed. An object store
    replaces an object in one step. Methods raise :class:`StoreUnavailable` if the store cannot be read or written.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = os.fspath(url)
        self._filesystem, self.root = _open_filesystem(self.url)
        self._process = os.getpid()
        self._inside: set[Path] = set()
        protocol = self._filesystem.protocol
        protocols = protocol if isinstance(protocol, tuple) else (protocol,)
        self.is_local = "file" in protocols
        # One request per read. By default, s3fs first asks for the size of a file, to read its parts concurrently.
        self._reading = {"max_concurrency": 1} if "s3" in protocols else {}

    @property
    def _fs(self) -> Any:
        """The fsspec driver. A forked process makes a new driver, because connections cannot be shared."""
        if self._process != os.getpid():
            self._filesystem, _ = _open_filesystem(self.url)
            self._process = os.getpid()
        return self._filesystem

    def path(self, name: str) -> str:
        """Return the full path of ``name``. Raises ``ValueError`` unless it is a plain path inside the root."""
        odd_part = any(part in ("", ".", "..") or len(os.fsencode(part)) > MAX_PART for part in name.split("/"))
        if odd_part or set("\\\0\n\r") & set(name) or len(os.fsencode(name)) > MAX_NAME:
            raise ValueError(f"{short_repr(name)} is not a plain name inside the store")
        return f"{self.root}/{name}"

    def location(self, name: str) -> str:
        """Return the path or URL of ``name``, for people."""
        path = self.path(name)
        return path if self.is_local else f"{self.url.rstrip('/')}/{name}"

    def local_path(self, name: str) -> Path:
        """Return the path of ``name`` on this machine's disk. Raises :class:`StoreUnavailable` for a remote store."""
        if not self.is_local:
            raise StoreUnavailable(f"{self.url} is not a folder on this machine", where=name)
        return Path(self.path(name))

    def path_inside(self, name: str) -> Path:
        """Return the path of ``name`` on this machine's disk. Raises ``UserError`` for a link out of the store."""
        path = self.local_path(name)
        if path.parent in self._inside and not os.path.islink(path):  # the folder was checked before
            return path
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if os.path.commonpath((real, root)) != root:
            hint = "files outside of a store are not read; link the whole store instead, or move the file into it"
            raise UserError(f"{path} is a link that leads out of the store", where=self.url, hint=hint)
        if not os.path.islink(path):
            self._inside.add(path.parent)
        return path

    # -- listing ---------------------------------------------------------------------------------------------------

    def exists(self, name: str) -> bool:
        """Return whether a file called ``name`` exists."""
        with translate_errors(self.url):
            return bool(self._fs.exists(self.path(name)))

    def names(self, folder: str) -> list[str]:
        """Return the sorted names of the files and folders directly inside ``folder``; empty if it does not exist."""
        with contextlib.suppress(FileNotFoundError), translate_errors(self.url):
            paths = self._fs.ls(self.path(folder), detail=False, refresh=True)
            return sorted({path.rstrip("/").rsplit("/", 1)[-1] for path in paths} - {"", ".", ".."})
        return []

    def records(self, folder: str) -> list[str]:
        """Return the names, without ``.json``, of the JSON files directly inside ``folder``; no temporary files."""
        return [name.removesuffix(".json") for name in self.names(folder) if name.endswith(".json") and name[0] != "."]

    def versions(self, folder: str) -> dict[str, FileVersion]:
        """Return path -> version of the files in ``folder`` and its sub-folders; empty if it does not exist."""
        path = self.path(folder)
        with contextlib.suppress(FileNotFoundError), translate_errors(self.url):
            found = dict(_scan(path)) if self.is_local else self._find(path)
            return {name[len(path) + 1 :]: version for name, version in found.items()}
        return {}

    def _find(self, path: str) -> dict[str, FileVersion]:
        found = {}
        for name, entry in self._fs.find(path, detail=True).items():
            written = entry.get("LastModified") or entry.get("created")
            seconds = written.timestamp() if isinstance(written, datetime) else 0.0
            found[name] = FileVersion(int(entry["size"] or 0), str(entry.get("ETag") or "").strip('"'), seconds)
        return found

    # -- reading and writing ---------------------------------------------------------------------------------------

    def read(self, name: str) -> bytes:
        """Return the content of a file.

        Raises ``FileNotFoundError`` if it does not exist, and ``UserError`` for a link out of the store and for a local
        file of more than ``LARGEST`` bytes.
        """
        with translate_errors(self.url):
            if self.is_local:
                size = self.local_path(name).stat().st_size  # raises for a missing file, before the check for links
                self.path_inside(name)
                if size > LARGEST:
                    what = f"{self.location(name)} has {size / 2**20:.0f} MiB, far more than a file of this kind has"
                    raise UserError(what, where=self.url, hint="move it away; a missing result is measured again")
            return bytes(self._fs.cat_file(self.path(name), **self._reading))

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the contents of many files, in order; ``None`` for a file that does not exist."""

        def read_or_none(name: str) -> bytes | None:
            with contextlib.suppress(FileNotFoundError):
                return self.read(name)
            return None

        return self.map(read_or_none, names)

    def map(self, function: Callable[[Item], Value], items: Iterable[Item]) -> list[Value]:
        """Return ``function(item)`` of every item, in order. The calls are concurrent for a remote store."""
        items = list(items)
        if self.is_local or len(items) < 2:
            return [function(item) for item in items]
        with ThreadPoolExecutor(min(MAX_REQUESTS, len(items)), "store") as pool:
            return list(pool.map(function, items))

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        if self.is_local:
            self._write(self.local_path(name), data, os.replace)
        else:
            with translate_errors(self.url):
                self._fs.pipe_file(self.path(name), data)

    def create(self, name: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written.

        If several processes create the same file at once, one of them gets ``True``. On an S3-compatible server without
        conditional writes, several can get ``True``, and the last content stays. The caller can read the file back.
        """
        if not self.is_local and self.exists(name):
            return False
        with translate_errors(self.url):
            try:
                if self.is_local:
                    self._write(self.local_path(name), data, _link)
                else:
                    self._fs.pipe_file(self.path(name), data, mode="create")
            except OSError as error:
                refusals = ("FileExistsError", "PreconditionFailed", "ConditionalRequestConflict")
                if not any(refusal in f"{error!r} {error.__cause__!r}" for refusal in refusals):
                    raise
                # If the server's answer is lost, the driver repeats the request, which then finds its own file.
                return not self.is_local and self.read_many([name]) == [data]
        return True

    def _write(self, target: Path, data: bytes, put: Callable[[Path, Path], None]) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(target, put) as temporary:
                temporary.write_bytes(data)
        except FileExistsError:
            raise
        except OSError as error:
            raise store_unavailable(error, str(target)) from error

    def move(self, name: str, to: str) -> None:
        """Rename a file. Raises ``FileNotFoundError`` if it does not exist."""
        with translate_errors(self.url):
            self._fs.mv(self.path(name), self.path(to))

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
        with contextlib.suppress(FileNotFoundError), translate_errors(self.url):
            self._fs.rm_file(self.path(name))

    def remove_folder(self, name: str) -> None:
        """Remove a folder with everything in it, if it exists."""
        with contextlib.suppress(FileNotFoundError), translate_errors(self.url):
            self._fs.rm(self.path(name), recursive=True)

    def upload(self, local: Path, name: str) -> None:
        """Copy a local file into a remote store. The store lists the file only after the upload is complete."""
        with translate_errors(self.url):
            self._fs.put_file(str(local), self.path(name))

    def download(self, name: str, local: Path) -> None:
        """Copy a file of the store to this machine atomically. Raises ``FileNotFoundError`` if it does not exist."""
        local.parent.mkdir(parents=True, exist_ok=True)
        with replacing(local) as temporary, translate_errors(self.url):
            self._fs.get_file(self.path(name), str(temporary))


def cache_folder() -> Path:
    """Return the folder of this machine's cache."""
    return Path(os.path.expanduser(os.environ.get(FOLDER) or "~/.cache/bolt")).absolute()


def local_folder(files: Files, folder: str) -> Path:
    """Return the path of a store's folder on this machine; for a remote store, the path of the folder's mirror."""
    if files.is_local:
        return files.local_path(folder)
    files.path(folder)
    store_key = hashlib.sha256(files.url.rstrip("/").encode()).hexdigest()[:8]
    return cache_folder() / "stores" / store_key / folder


def upload_folder(files: Files, folder: str, last: str) -> None:
    """Make a remote folder equal to this machine's mirror of it. The file called ``last`` is uploaded last."""
    if files.is_local:
        return
    local = local_folder(files, folder)
    here = {path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()}
    here = {name for name in here if not name.startswith(".")}
    files.map(lambda name: files.upload(local / name, f"{folder}/{name}"), sorted(here - {last}))
    files.upload(local / last, f"{folder}/{last}")
    files.map(lambda name: files.remove(f"{folder}/{name}"), files.versions(folder).keys() - here)


def read_small_files(
    files: Files, folder: str, names: Sequence[str], listed: Mapping[str, FileVersion]
) -> dict[str, bytes | None]:
    """Return name -> content of many small files of a folder; ``None`` for a file that does not exist.

    ``listed``: the name and version of each file that a listing of the folder found. Files of a remote store are kept
    in a mirror on this machine. A mirrored file is used if its MD5 equals the tag in ``listed``; otherwise the file is
    downloaded again. The tag of S3 is the MD5 if the object was written in one piece and is not encrypted with the
    user's key.
    """
    if files.is_local:
        return dict(zip(names, files.read_many([f"{folder}/{name}" for name in names]), strict=True))
    local = local_folder(files, folder)
    found: dict[str, bytes | None] = {}
    for name in listed.keys() & names:
        with contextlib.suppress(OSError):
            content = (local / name).read_bytes()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == listed[name].tag:
                found[name] = content
    missing = [name for name in names if name not in found]
    read = dict(zip(missing, files.read_many([f"{folder}/{name}" for name in missing]), strict=True))
    with contextlib.suppress(OSError):  # the mirror is optional, and the disk may be full
        local.mkdir(parents=True, exist_ok=True)
        for name, now in read.items():
            if now is not None:
                (local / name).write_bytes(now)
    return found | read


def _open_filesystem(url: str) -> tuple[Any, str]:
    """Return the driver for a URL, and the root path in it.

    Raises ``UserError`` for a URL that no installed driver opens.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("s3", "s3a") and not rest.strip("/"):
        raise UserError("the URL names no bucket", where=url, hint="s3://BUCKET/FOLDER")
    # Listings must not be cached, because other processes write into the store.
    options: dict[str, Any] = {"use_listings_cache": False} if separator else {}
    if scheme in ("s3", "s3a") and not {"config_kwargs", "config"} & set(fsspec.config.conf.get("s3", {})):
        options["config_kwargs"] = {"max_pool_connections": CONNECTIONS}
    if separator:  # after a lost connection, aiohttp prints a traceback although the request raises
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        if scheme == "file" or not separator:  # fsspec would take `::` in the name for a chain of URLs
            filesystem = fsspec.filesystem("file")
            root = os.path.abspath(os.path.expanduser(rest if separator else url))
        else:
            filesystem, root = fsspec.core.url_to_fs(url, **options)
        if "file" in filesystem.protocol:
            _check_name(root)
    except (ValueError, ImportError, OSError) as error:
        reason = (isinstance(error, OSError) and error.strerror) or one_line(error)
        needed = "s3:// needs s3fs: pip install 'bolt-orchestrator[cluster]'"
        hint = f"give a folder, or a URL whose driver is installed ({needed})"
        raise UserError(f"cannot use {short_repr(url)} as a store: {reason}", hint=hint) from None
    return filesystem, str(root).rstrip("/")


def _check_name(root: str) -> None:
    """Raise ``OSError`` for a name that is too long or a loop of links. The first read reports any other problem."""
    try:
        os.stat(root)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise


def _scan(folder: str) -> Iterator[tuple[str, FileVersion]]:
    """Yield the path and version of each file in a local folder and its sub-folders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process has removed the entry, or it is a link to itself
                if entry.is_dir(follow_symlinks=False):
                    yield from _scan(entry.path)
                elif entry.is_file():
                    found = entry.stat()
                    yield entry.path, FileVersion(found.st_size, f"{found.st_mtime_ns} {found.st_ino}", found.st_mtime)


def _link(source: Path, target: Path) -> None:
    """Give a file the name ``target`` as well. Raises ``FileExistsError`` if the name exists.

    Without hard links, the file is renamed.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o644))  # reserves the name; this empty file is then replaced
        os.replace(source, target)
