"""Files under one root, on local disk or any fsspec URL, each written whole or not at all."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import fsspec

from orchestrator.errors import UserError


class Files:
    """A root folder or URL with atomic writes.

    Local writes go to a temporary name beside the target, are flushed to disk and then renamed; object stores
    replace an object in one step by themselves.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self.url = os.fspath(url)
        try:
            self._fs, root = fsspec.core.url_to_fs(self.url)
        except (ValueError, ImportError) as error:
            raise UserError(
                f"cannot use {self.url!r} as a store: {error}",
                hint="give a folder, or a URL whose fsspec driver is installed (s3:// needs s3fs)",
            ) from None
        self.root = str(root).rstrip("/")
        self.is_local = "file" in (self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,))

    def path(self, name: str) -> str:
        """The full path of ``name``; raises ``ValueError`` for a name that would leave the root."""
        parts = name.split("/")
        if name.startswith("/") or "\\" in name or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"{name!r} is not a plain name inside the store")
        return f"{self.root}/{name}"

    def local_path(self, name: str) -> Path:
        """The path of ``name`` on this machine's disk. Raises ``UserError`` for a store that is not local."""
        if not self.is_local:
            raise UserError(f"{self.url} is not a folder on this machine", where=name)
        return Path(self.path(name))

    def exists(self, name: str) -> bool:
        """Whether a file called ``name`` is there."""
        return bool(self._fs.exists(self.path(name)))

    def size(self, name: str) -> int | None:
        """Bytes of a file, or ``None`` if it is not there."""
        try:
            return int(self._fs.info(self.path(name))["size"])
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        """Names of the files and folders directly inside ``folder``, sorted; empty if there is no such folder."""
        if self.is_local:
            try:
                return sorted(entry.name for entry in os.scandir(self.path(folder)))
            except FileNotFoundError:
                return []
        try:
            entries = self._fs.ls(self.path(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(str(entry).rstrip("/").rsplit("/", 1)[-1] for entry in entries)

    def read(self, name: str) -> bytes:
        """The bytes of a file; raises ``FileNotFoundError``."""
        if self.is_local:
            return Path(self.path(name)).read_bytes()
        return bytes(self._fs.cat_file(self.path(name)))

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        path = self.path(name)
        if not self.is_local:
            self._fs.pipe_file(path, data)
            return
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            with open(temporary, "wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def move(self, name: str, to: str) -> None:
        """Rename a file."""
        self._fs.mv(self.path(name), self.path(to))

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        if self.exists(name):
            self._fs.rm_file(self.path(name))

    def upload(self, local: Path, name: str) -> None:
        """Copy a file of this machine into the store (not atomic; the caller's manifest makes it count)."""
        self._fs.put_file(str(local), self.path(name))

    def download(self, name: str, local: Path) -> None:
        """Copy a file of the store to this machine, whole or not at all."""
        local.parent.mkdir(parents=True, exist_ok=True)
        temporary = local.with_name(f".{local.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            self._fs.get_file(self.path(name), str(temporary))
            os.replace(temporary, local)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
