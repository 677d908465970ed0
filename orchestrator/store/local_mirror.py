"""This machine's mirror of reports, adapters and results of a remote store. ``node_cache.py`` caches artifacts."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.store.files import Files, FileVersion
from orchestrator.store.node_cache import cache_folder


def local_folder(files: Files, folder: str) -> Path:
    """This machine's mirror of a folder of a remote store; the folder itself of a local store."""
    if files.is_local:
        return files.local_path(folder)
    files.path(folder)
    store_key = hashlib.sha256(files.url.rstrip("/").encode()).hexdigest()[:8]
    return cache_folder() / "stores" / store_key / folder


def fetch_folder(files: Files, folder: str) -> Path | None:
    """A folder on this machine's disk, downloaded now from a remote store; ``None`` if it has no files."""
    names = [name for name in files.names(folder) if not name.startswith(".")]
    local = local_folder(files, folder)
    if not files.is_local:
        files.map(lambda name: files.download(f"{folder}/{name}", local / name), names)
    return local if names else None


def upload_folder(files: Files, folder: str, last: str) -> None:
    """Make a remote folder equal to this machine's mirror of it; the file called ``last`` is uploaded last."""
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
    """The contents of many small files of a folder, which was ``listed``; ``None`` for those that are gone.

    From a remote store each is downloaded once per machine. The mirrored copy is used while its MD5 equals the listed
    tag; in S3 it does for an object written in one piece and not encrypted with the user's own key.
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
    with contextlib.suppress(OSError):  # a full disk gets no mirrored copies
        local.mkdir(parents=True, exist_ok=True)
        for name, now in read.items():
            if now is not None:
                (local / name).write_bytes(now)
    return found | read
