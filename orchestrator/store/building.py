"""Builds an artifact: files first, the manifest last. Records the progress, and removes files of crashed builders."""

import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.core.events import OnProgress
from orchestrator.store.artifact import Artifact
from orchestrator.store.errors import DISK_ERRORS, translate_errors
from orchestrator.store.files import Files
from orchestrator.store.lease import Owner
from orchestrator.store.node_cache import node_cache
from orchestrator.store.snapshots import Snapshots
from orchestrator.util.errors import UserError
from orchestrator.util.identity import canonical_json, encode, file_digest

STALE_ATTEMPT_SECONDS = 24 * 3600.0
"""The folder of an attempt counts as abandoned if nothing was written into it for this time. Fine-tuning can take most
of a day before its first write."""

OWNER_FILE = ".builder"
"""The file in an attempt's folder that names the builder's process. It is removed when the artifact exists."""

WRITE_SECONDS = 5.0
"""Least number of seconds from the start to the first write of the progress, and between two writes. A build that
takes less time writes no progress file."""

_ATTEMPT = re.compile(r"\d+-[0-9a-f]{8}")
"""The name of an attempt's folder: the time it was started, in seconds since the epoch, and random digits."""


@dataclass(frozen=True)
class Builder:
    """The folder and the tools of one build, passed to :meth:`ArtifactSpec.build`.

    Attributes:
        folder: the folder for the artifact's files.
        meta: facts for the manifest, as JSON values.
        progress: called with the number of finished steps and of all steps.
        snapshots: saves the state of a long training, and loads it when the training is started again.
    """

    folder: Path
    meta: dict[str, Any]
    progress: OnProgress
    snapshots: Snapshots


class BuildProgress:
    """The progress file of one artifact. Failures to read or write it are ignored."""

    def __init__(self, files: Files, address: str) -> None:
        self._files, self._name = files, f"status/building/{address.replace('/', '.')}"
        self._written = time.monotonic()

    def write(self, done: int, total: int) -> None:
        """Record that ``done`` of ``total`` steps are done, unless the last write was a moment ago."""
        now = time.monotonic()
        if now - self._written < WRITE_SECONDS:
            return
        self._written = now
        with suppress(OSError):  # a full disk must not end the build just because of the progress file
            self._files.write(self._name, f"{done:,} of {total:,}".encode())

    def remove(self) -> None:
        """Remove the file, which may be from a killed builder."""
        with suppress(OSError):
            self._files.remove(self._name)

    def read(self) -> str:
        """Return the last reported progress, such as ``1,500 of 3,000``; empty if there is none."""
        with suppress(OSError):
            return self._files.read(self._name).decode("utf-8", "replace")
        return ""


def fraction_done(progress: str) -> float | None:
    """Return the fraction, 0 to 1, of a progress text such as ``1,500 of 3,000``; ``None`` for any other text."""
    done, _, total = progress.replace(",", "").partition(" of ")
    with suppress(ValueError, ZeroDivisionError):
        return int(done) / int(total)
    return None


@contextmanager
def building(store: Files, address: str, identity: Any) -> Iterator[Builder]:
    """Build an artifact: the block writes files into ``builder.folder`` and values into ``builder.meta``.

    When the block ends without an error, the files are hashed and the manifest is written. Only then does the artifact
    exist. After an error, the files are removed, except a snapshot of a training. For a remote store, the folder is in
    this machine's cache, which keeps the files after the upload.

    Raises ``UserError`` when the disk is full or not writable.
    """
    attempt = f"{int(time.time())}-{uuid.uuid4().hex[:8]}"
    home = f"{address}/{attempt}"
    progress = BuildProgress(store, address)
    progress.remove()
    place = nullcontext(store.local_path(home)) if store.is_local else node_cache().scratch()
    with place as folder:
        builder = Builder(folder, {}, progress.write, Snapshots(store, address, canonical_json(encode(identity))))
        try:
            with translate_errors(store.url):
                folder.mkdir(parents=True, exist_ok=True)
            (folder / OWNER_FILE).write_bytes(Owner().content())
            yield builder
            built = {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and path.name != OWNER_FILE}
            files = {name: (f"{home}/{name}", path.stat().st_size, file_digest(path)) for name, path in built.items()}
            tags = {}
            if not store.is_local:
                store.map(lambda path: store.upload(path, f"{home}/{path.name}"), built.values())
                uploaded = store.versions(home)
                tags = {name: version.tag for name, version in uploaded.items() if version.tag}
        except BaseException as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, OSError) and (reason := DISK_ERRORS.get(error.errno or 0)):
                where = store.url if store.is_local else str(folder.parent.parent)
                raise UserError(f"{address} cannot be built: {reason}", where=where) from error
            raise
        finally:
            progress.remove()
        finished = Artifact(address=address, identity=identity, meta=builder.meta, files=files, tags=tags)
        store.write(f"{address}/manifest.json", finished.manifest())
        (folder / OWNER_FILE).unlink(missing_ok=True)
        if not store.is_local:
            for name, path in built.items():
                with suppress(UserError):  # if the cache is full, the error is raised when a process reads the file
                    node_cache().put(path, files[name][2])
    builder.snapshots.remove()
    for other in store.names(address):
        if other != attempt and _ATTEMPT.fullmatch(other) and _is_abandoned(store, f"{address}/{other}"):
            with suppress(OSError):
                store.remove_folder(f"{address}/{other}")


def _is_abandoned(store: Files, attempt: str) -> bool:
    """Return whether an attempt is abandoned: its folder can be removed, because no builder uses it any more.

    An attempt counts as abandoned if its builder ran on this machine and has ended, or if the last write into the
    folder is more than ``STALE_ATTEMPT_SECONDS`` ago.
    """
    with suppress(OSError):
        owner = Owner.read(store, f"{attempt}/{OWNER_FILE}")  # a remote store never has this file
        if owner is not None and owner.is_here and owner.is_gone():
            return True
    started = float(attempt.rpartition("/")[2].partition("-")[0])
    written = [version.written for version in store.versions(attempt).values()]
    return time.time() - max([started, *written]) > STALE_ATTEMPT_SECONDS
