"""What stands on the data root: how far each dataset is, the record beside its files, and the lock of its builder."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.catalog import BUNDLED_ROUTES, DatasetEntry, dataset_folder, missing_data, partial_folder
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock

RECORD = "bolt-dataset.json"
"""Written into a dataset's folder when ``data prepare`` has filled it."""

State = Literal["drawn", "there", "partial", "missing"]


@dataclass(frozen=True)
class Record:
    """What ``data prepare`` knows of a dataset it filled.

    Attributes:
        dataset: its key.
        date: when it was filled, ISO 8601 in UTC.
        origin: where its files came from.
        revision: the commit, where there is such a thing.
        files: name of each file that was fetched -> its checksum.
        bytes: on disk.
        manifest: classes, counts and checksums of the parts (:class:`SplitManifest`).
        differs: where they are not what the catalog says.
    """

    dataset: str
    date: str
    origin: str
    revision: str | None
    files: Mapping[str, str]
    bytes: int
    manifest: Mapping[str, Any]
    differs: tuple[str, ...]


def state_of(entry: DatasetEntry, data_root: Path | None) -> State:
    """How far a dataset is. A partial one is never taken for whole: it stands under another name."""
    if entry.route.kind in BUNDLED_ROUTES:
        return "drawn"
    if missing_data(entry, data_root) is None:
        return "there"
    return "partial" if data_root is not None and partial_folder(entry, data_root).is_dir() else "missing"


def write_record(record: Record, folder: Path) -> None:
    """Put the record beside the files; the folder is not whole yet, so it need not be atomic."""
    with open(folder / RECORD, "w", encoding="utf-8") as stream:
        json.dump(asdict(record), stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


def read_record(entry: DatasetEntry, data_root: Path | None) -> Record | None:
    """The record of a dataset that ``data prepare`` filled; ``None`` for one that its user put there."""
    try:
        fields: dict[str, Any] = json.loads((dataset_folder(entry, data_root) / RECORD).read_text(encoding="utf-8"))
        return Record(**{**fields, "differs": tuple(fields["differs"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder; a file with two names counts once."""
    seen: dict[tuple[int, int], int] = {}
    pending = [folder]
    while pending:
        try:
            entries = list(os.scandir(pending.pop()))
        except OSError:
            continue
        for item in entries:
            if item.is_dir(follow_symlinks=False):
                pending.append(Path(item.path))
            else:
                found = item.stat(follow_symlinks=False)
                seen[found.st_dev, found.st_ino] = found.st_size
    return sum(seen.values())


@contextlib.contextmanager
def dataset_lock(name: str, data_root: Path) -> Iterator[None]:
    """Hold a dataset's lock, so that two commands do not fill one folder at a time. It dies with its process.

    Raises ``UserError`` naming the process that holds it.
    """
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(file_lock(data_root / ".locks" / f"{name}.lock"))
        except LockHeld as process:
            raise UserError(
                f"{name} is being prepared in {data_root} by process {process}",
                hint="wait for it, or stop it; the same command then goes on from there",
            ) from None
        yield
