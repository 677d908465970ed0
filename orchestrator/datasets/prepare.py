"""``data prepare``: fetch a dataset completely, or leave nothing that looks complete.

A dataset is assembled in ``ROOT/NAME.partial/NAME``. As a test, it is opened there by the code that reads datasets for
cells, and its images are counted. Then the folder is renamed to ``ROOT/NAME``. If the command ends earlier, no other
command takes the dataset for complete, and the next ``prepare`` continues with the files that were fetched.
"""

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from orchestrator.catalog import DatasetEntry, dataset_folder, missing_data, partial_folder
from orchestrator.datasets.fetching import FETCHERS, download_size
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.splits import split_manifest
from orchestrator.datasets.state import RECORD, Record, StagingArea, bytes_in, dataset_lock, other_data, read_record
from orchestrator.store.errors import DISK_ERRORS
from orchestrator.util.atomic_files import nearest_existing
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes, pluralize

NOT_WRITABLE = {
    **DISK_ERRORS,
    errno.EACCES: "this folder may not be written to",
    errno.EPERM: "this folder may not be written to",
    errno.ENOTDIR: "this is not a folder",
}


@dataclass(frozen=True)
class FetchJob:
    """A dataset to fetch.

    Attributes:
        size: bytes to fetch, if known.
        begun: bytes that an earlier attempt has left on the disk.
    """

    entry: DatasetEntry
    size: int | None
    begun: int

    @property
    def space(self) -> int:
        """Bytes of disk space that are still needed, 0 if unknown."""
        copies = 1 if self.entry.route.kind == "huggingface" else 2  # an archive is kept until all is unpacked
        return max(0, (self.size or 0) * copies - self.begun)

    @property
    def line(self) -> str:
        """A text with the size, the origin and the licence."""
        size = human_bytes(self.size) if self.size is not None else "size unknown"
        begun = f" ({human_bytes(self.begun)} on the disk already)" if self.begun else ""
        gated = f"\n  before that: {self.entry.gated}" if self.entry.gated else ""
        found = f"{self.entry.name}: {size}{begun} from {self.entry.route.origin}"
        return f"{found}\n  licence: {self.entry.licence}{gated}"


def plan_preparation(
    entries: Iterable[DatasetEntry], data_root: Path
) -> tuple[list[str], list[FetchJob], list[DatasetEntry]]:
    """Return three lists: lines on the datasets that are complete, the datasets to fetch, and those to fetch by hand.

    Servers are asked for sizes that the catalog does not state. If a dataset is complete, its partial folder is
    removed.

    Raises ``UserError`` if the folder of a dataset does not hold this dataset.
    """
    there, jobs, by_hand = list[str](), list[FetchJob](), list[DatasetEntry]()
    for entry in entries:
        if entry.is_bundled:
            there.append(f"{entry.name} needs no files")
        elif missing_data(entry, data_root) is None:
            if error := other_data(entry, data_root):
                raise error
            inner = partial_folder(entry, data_root)
            if inner.is_dir() and entry.route.kind in FETCHERS:  # an earlier command was killed before it removed this
                with dataset_lock(entry.name, data_root):
                    shutil.rmtree(inner, ignore_errors=True)
            record = read_record(entry, data_root)
            found = f", prepared {record.date[:10]}" if record else ""
            there.append(f"{entry.name} is there: {dataset_folder(entry, data_root)}{found}")
        elif entry.route.kind not in FETCHERS:
            by_hand.append(entry)
        else:
            jobs.append(FetchJob(entry, download_size(entry), bytes_in(partial_folder(entry, data_root))))
    return there, jobs, by_hand


def check_space(jobs: Sequence[FetchJob], data_root: Path) -> str:
    """Return a line with the needed and the free disk space. Raises ``UserError`` if the free space is too small."""
    free = shutil.disk_usage(nearest_existing(data_root)).free
    needed = sum(job.space for job in jobs)
    unknown = sum(job.size is None for job in jobs)
    line = f"about {human_bytes(needed)} of disk needed" if unknown < len(jobs) else "disk needed: not known"
    if 0 < unknown < len(jobs):
        line += f", not counting {pluralize(unknown, 'dataset')} of unknown size"
    if needed > free:
        largest = sorted(jobs, key=lambda job: -job.space)[:5]
        listed = ", ".join(f"{job.entry.name} {human_bytes(job.space)}" for job in largest)
        hint = f"prepare fewer at a time, or give another --data-root; the largest: {listed}"
        raise UserError(f"{line}, and {human_bytes(free)} are free", where=str(data_root), hint=hint)
    return f"{line}, {human_bytes(free)} free"


def prepare_one(entry: DatasetEntry, data_root: Path, console: Console) -> Record | None:
    """Fetch and check a dataset. Return its record, or ``None`` if another process has prepared the dataset meanwhile.

    Raises ``UserError`` if another process is preparing the dataset, its files cannot be fetched or read, or the data
    root cannot be written to.
    """
    try:
        with dataset_lock(entry.name, data_root):
            if missing_data(entry, data_root) is None:
                return None
            return _fill(entry, data_root, console)
    except OSError as error:
        if error.errno not in NOT_WRITABLE:
            raise
        what = f"{entry.name} cannot be prepared: {NOT_WRITABLE[error.errno]} ({error})"
        hint = "fix that and run the same command again; files that were fetched are kept"
        raise UserError(what, where=str(data_root), hint=hint) from None


def _fill(entry: DatasetEntry, data_root: Path, console: Console) -> Record:
    inner = partial_folder(entry, data_root)  # takes the place of the data root until the dataset is complete
    staging = StagingArea(inner / entry.name, inner / "downloads", console)
    staging.downloads.mkdir(parents=True, exist_ok=True)
    revision, files = FETCHERS[entry.route.kind](entry, staging)
    try:
        manifest = split_manifest(entry, open_dataset(entry, inner))
    except UserError as error:
        what = f"the fetched files cannot be read as {entry.name}: {error.what}"
        hint = f"the files stay in {inner}; remove that folder to fetch them again\n  {error.hint}".rstrip()
        raise UserError(what, where=error.where, hint=hint) from None
    record = Record(
        dataset=entry.name,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        origin=entry.route.origin,
        revision=revision,
        files=dict(sorted(files.items())),
        bytes=bytes_in(staging.folder),
        manifest=manifest,
        differs=tuple(manifest.differs(entry)),
    )
    (staging.folder / RECORD).write_text(record.model_dump_json(indent=1), encoding="utf-8")
    os.rename(staging.folder, dataset_folder(entry, data_root))
    shutil.rmtree(inner)
    return record


def by_hand_error(entries: Sequence[DatasetEntry], data_root: Path) -> UserError:
    """Return the error for datasets that have to be fetched by hand, with the steps for each."""
    steps = [str(missing_data(entry, data_root)) for entry in entries]
    names = " ".join(entry.name for entry in entries)
    steps.append(f"then: python -m orchestrator data verify {names} --data-root {data_root}")
    return UserError(f"these datasets have to be fetched by hand: {names}", hint="\n  ".join(steps))
