"""The state of a dataset under the data root: complete, being fetched or missing. Its record and its lock."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console

from orchestrator.catalog import DatasetEntry, dataset_folder, missing_data, partial_folder
from orchestrator.catalog.validation import StrictModel
from orchestrator.datasets.splits import SplitManifest
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.locks import LockHeld, file_lock

RECORD = "bolt-dataset.json"
"""File name of the record that ``data prepare`` writes into a dataset's folder."""

Fetched = tuple[str | None, dict[str, str]]
"""A pair: the commit of the fetched repository, ``None`` if the files are from no repository; and name of each fetched
file -> its checksum, ``sha256:...``."""

State = Literal["drawn", "there", "other data", "partial", "missing"]

FEWEST = 0.9
"""Smallest share of a dataset's images that its folder must hold. A folder with fewer images is taken for other data.

Images are counted only in the folders that :func:`other_data` opens."""


class Record(StrictModel):
    """What ``data prepare`` records about a dataset.

    Attributes:
        date: when it was fetched, ISO 8601 in UTC.
        origin: the address or library that it was fetched from.
        revision: the commit of the repository; ``None`` if it was not fetched from a repository.
        files: name of each fetched file -> its checksum.
        bytes: the size of the dataset's folder on the disk.
        differs: how the counts differ from the catalog's, a line for each difference.
    """

    dataset: str
    date: str
    origin: str
    revision: str | None
    files: dict[str, str]
    bytes: int
    manifest: SplitManifest
    differs: tuple[str, ...]


@dataclass(frozen=True)
class StagingArea:
    """The folders in ``ROOT/NAME.partial`` that a dataset is fetched into.

    Attributes:
        folder: the dataset's files; renamed to ``ROOT/NAME`` when they are complete.
        downloads: the downloaded files, kept until the dataset is complete.
        console: where progress is shown.
    """

    folder: Path
    downloads: Path
    console: Console

    def clear(self) -> None:
        """Empty ``folder``, because an interruption may have left half a file there."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)


def state_of(entry: DatasetEntry, data_root: Path | None) -> State:
    """Return the state of a dataset.

    Files are fetched into a folder of another name, so a folder with the dataset's own name is complete.
    """
    if entry.is_bundled:
        return "drawn"
    if missing_data(entry, data_root) is None:
        return "other data" if other_data(entry, data_root) else "there"
    return "partial" if data_root is not None and partial_folder(entry, data_root).is_dir() else "missing"


def other_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """Return an error if the folder of a catalog dataset holds other images, such as the user's. The folder must exist.

    Folders that ``data prepare`` made, datasets that the user added and datasets of the few-shot benchmark are trusted
    without opening them.
    """
    if not entry.is_prepared or read_record(entry, data_root):
        return None
    from orchestrator.datasets.opening import open_dataset  # imports the readers of all formats

    folder = dataset_folder(entry, data_root)
    try:
        found = open_dataset(entry, data_root)
    except UserError as error:
        why = error.what
    except Exception as error:  # the libraries that read the files raise errors of many classes
        why = one_line(error)
    else:
        images, expected = len(found.train) + len(found.test), entry.sizes.train + entry.sizes.test
        if len(found.class_names) == entry.classes and images >= FEWEST * expected:
            return None
        why = f"it has {len(found.class_names)} classes and {images:,} images, not {entry.classes} and {expected:,}"
    hint = f"rename the folder; to add your images: python -m orchestrator data add {folder} --name my-{entry.name}"
    if any(folder.glob("split_zhou_*.json")) or any((folder / name).exists() for name in ("variants.txt", "images")):
        hint = f"for the few-shot benchmark, see `data list --domain eleven`; for {entry.name}, give another data root"
    return UserError(f"{folder} is not the dataset {entry.name} of the catalog: {why}", hint=hint)


def read_record(entry: DatasetEntry, data_root: Path | None) -> Record | None:
    """Return the record of a fetched dataset; ``None`` for a dataset that ``data prepare`` did not fetch."""
    with contextlib.suppress(OSError, ValueError):
        return Record.model_validate_json((dataset_folder(entry, data_root) / RECORD).read_text(encoding="utf-8"))
    return None


def bytes_in(folder: Path) -> int:
    """Return the total size of the files below a folder. A file with several hard links counts once."""
    stats = (os.lstat(os.path.join(inner, name)) for inner, _, files in os.walk(folder) for name in files)
    return sum({(stat.st_dev, stat.st_ino): stat.st_size for stat in stats}.values())


@contextlib.contextmanager
def dataset_lock(name: str, data_root: Path) -> Iterator[None]:
    """Hold a dataset's lock, so that only one command fetches the dataset. The lock ends with its process.

    Raises ``UserError`` that names the process which holds the lock.
    """
    try:
        with file_lock(data_root / ".locks" / f"{name}.lock"):
            yield
    except LockHeld as process:
        hint = "wait for that process, or stop it; the same command then continues the download"
        raise UserError(f"{name} is being prepared in {data_root} by process {process}", hint=hint) from None
