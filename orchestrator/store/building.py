"""Building an artifact: files first, the manifest last; and what builders that crashed left behind."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator.store.artifact import Artifact
from orchestrator.store.build_progress import BuildProgress
from orchestrator.store.files import Files
from orchestrator.store.lease_owner import LeaseOwner
from orchestrator.store.node_cache import node_cache, sha256
from orchestrator.store.remote import DISK_ERRORS
from orchestrator.store.snapshots import Snapshots
from orchestrator.util.errors import UserError
from orchestrator.util.identity import canonical_json, encode

STALE_ATTEMPT_SECONDS = 24 * 3600.0
"""Nothing was written into an attempt's folder for so long: its builder is gone. Fine-tuning can take most of a day
before it writes anything."""

BUILDER = ".builder"
"""In an attempt's folder on a disk: whose it is. Gone when the artifact exists."""

_ATTEMPT = re.compile(r"\d+-[0-9a-f]{8}")


@dataclass(frozen=True)
class Builder:
    """Where a builder writes.

    Attributes:
        folder: for files.
        meta: what it wants to note down.
        progress: to be called with how much is done, of how much.
        snapshots: where a long training leaves its state, to go on from when it is started again.
    """

    folder: Path
    meta: dict[str, Any]
    progress: Callable[[int, int], None]
    snapshots: Snapshots


@contextmanager
def building(store: Files, address: str, identity: Any) -> Iterator[Builder]:
    """Build an artifact: write files into ``builder.folder``, note things in ``builder.meta``.

    When the block ends without an error, the files are hashed and the manifest is written; only then does the
    artifact exist. An error leaves nothing behind but the builder's last snapshot, if it kept one.

    For a remote store the folder is in this machine's cache, which keeps the files once they are uploaded.

    Raises ``UserError`` when the disk is full or may not be written to.
    """
    attempt = f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
    said = BuildProgress(store, address)
    said.end()
    with ExitStack() as stack:
        if store.is_local:
            folder = store.local_path(f"{address}/{attempt}")
        else:
            folder = stack.enter_context(node_cache().scratch())
        builder = Builder(folder, {}, said.tell, Snapshots(store, address, canonical_json(encode(identity))))
        try:
            _make(folder)
            (folder / BUILDER).write_bytes(LeaseOwner().to_json())
            yield builder
            made = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name != BUILDER}
            files = {
                name: (f"{address}/{attempt}/{name}", path.stat().st_size, sha256(path)) for name, path in made.items()
            }
            tags = {} if store.is_local else _upload(store, made, f"{address}/{attempt}")
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError) and (reason := DISK_ERRORS.get(error.errno or 0)):
                where = store.url if store.is_local else str(folder.parent.parent)
                raise UserError(f"{address} cannot be built: {reason}", where=where) from error
            raise
        finally:
            said.end()
        finished = Artifact(address, identity, builder.meta, files, store, tags)
        store.write(f"{address}/manifest.json", finished.manifest())
        (folder / BUILDER).unlink(missing_ok=True)
        if not store.is_local:
            for name, path in made.items():
                with suppress(UserError):  # a cache that is full is told of by what cannot go without it
                    node_cache().put(path, files[name][2])
    builder.snapshots.remove()
    _sweep(store, address, attempt)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (PermissionError, NotADirectoryError) as error:
        raise UserError(f"the store cannot be written to: {error}", where=str(folder.parent.parent)) from None


def _upload(store: Files, made: dict[str, Path], folder: str) -> dict[str, str]:
    """Copy the files into a folder of a remote store; the tags that it gives their contents, by name."""
    store.map(lambda path: store.upload(path, f"{folder}/{path.name}"), made.values())
    return {name: found.tag for name, found in store.versions(folder).items() if name in made and found.tag}


def _sweep(store: Files, address: str, finished: str) -> None:
    """Remove what crashed builders left; an attempt whose builder may still be at work stays for a day."""
    if store.is_local:
        for entry in os.scandir(store.local_path(address)):
            if entry.is_dir() and entry.name != finished and _is_left(Path(entry)):
                shutil.rmtree(entry.path, ignore_errors=True)
        return
    now, ages = datetime.now(UTC), dict[str, dict[str, float]]()
    for name, came in store.list_recursive(address).items():
        attempt, _, rest = name.removeprefix(f"{address}/").partition("/")
        if rest and attempt != finished and _ATTEMPT.fullmatch(attempt):
            age = (now - came).total_seconds() if came else 0.0
            ages.setdefault(attempt, {})[name] = age
    for files in ages.values():
        if min(files.values()) > STALE_ATTEMPT_SECONDS:
            store.map(store.remove, files)


def _is_left(attempt: Path) -> bool:
    """Whether nobody builds in this folder any more: its process has ended, or nothing was written for long."""
    with suppress(FileNotFoundError):  # another builder sweeps as well
        with suppress(OSError):
            builder = LeaseOwner.from_json((attempt / BUILDER).read_bytes())
            if builder is not None and builder.is_here and builder.is_gone():
                return True
        written = max(item.stat().st_mtime for item in (attempt, *attempt.iterdir()))
        return time.time() - written > STALE_ATTEMPT_SECONDS
    return False
