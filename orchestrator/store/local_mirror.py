"""This machine's copies of what a remote store holds and people look at: reports, adapters, results.

Artifacts are not among them; :mod:`orchestrator.store.node_cache` holds those.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path

from orchestrator.store.files import Files, Version
from orchestrator.store.node_cache import node_cache


def local_folder(files: Files, folder: str) -> Path:
    """Where this machine keeps its copy of a folder of a remote store; the folder itself of a local one."""
    if files.is_local:
        return files.local_path(folder)
    files.path(folder)
    of_store = hashlib.sha256(files.url.rstrip("/").encode()).hexdigest()[:8]
    return node_cache().root / "stores" / of_store / folder


def fetch_folder(files: Files, folder: str) -> Path | None:
    """A folder on this machine's disk with its files, fetched now from a remote store; ``None`` if it has none."""
    names = [name for name in files.names(folder) if not name.startswith(".")]
    local = local_folder(files, folder)
    if not files.is_local:
        files.map(lambda name: files.download(f"{folder}/{name}", local / name), names)
    return local if names else None


def upload_folder(files: Files, folder: str, last: str) -> None:
    """Make a remote folder hold what this machine's copy of it holds, the file called ``last`` at the end."""
    if files.is_local:
        return
    local = local_folder(files, folder)
    here = {path.relative_to(local).as_posix() for path in local.rglob("*") if path.is_file()}
    here = {name for name in here if not name.startswith(".")}
    files.map(lambda name: files.upload(local / name, f"{folder}/{name}"), sorted(here - {last}))
    files.upload(local / last, f"{folder}/{last}")
    old = [name for name in files.list_recursive(folder) if name.removeprefix(f"{folder}/") not in here]
    files.map(files.remove, old)


def read_small_files(files: Files, folder: str, versions: Mapping[str, Version]) -> dict[str, bytes | None]:
    """The contents of many small files of a folder; ``None`` for those that are gone.

    From a remote store each is fetched once by this machine: a copy counts while its MD5 is the store's tag, which it
    is in S3 for an object written in one piece and not encrypted with a key of one's own.
    """
    if files.is_local:
        names = list(versions)
        return dict(zip(names, files.read_many([f"{folder}/{name}" for name in names]), strict=True))
    local = local_folder(files, folder)
    found: dict[str, bytes | None] = {}
    for name, version in versions.items():
        with contextlib.suppress(OSError):
            content = (local / name).read_bytes()
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == version.tag:
                found[name] = content
    missing = [name for name in versions if name not in found]
    with contextlib.suppress(OSError):  # a disk that is full keeps no copies
        local.mkdir(parents=True, exist_ok=True)
    for name, fetched in zip(missing, files.read_many([f"{folder}/{name}" for name in missing]), strict=True):
        found[name] = fetched
        if fetched is not None:
            with contextlib.suppress(OSError):
                (local / name).write_bytes(fetched)
    return found
