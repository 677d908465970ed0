"""From a catalog entry to a dataset's two parts, whatever route its images come by."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog import DatasetEntry, dataset_folder, missing_data
from orchestrator.datasets.part import RawDataset
from orchestrator.datasets.routes import READERS
from orchestrator.datasets.splits import split_indices
from orchestrator.datasets.words import class_words_of
from orchestrator.errors import UserError


def open_dataset(entry: DatasetEntry, data_root: Path | None) -> RawDataset:
    """Open a dataset without decoding anything.

    Raises ``UserError`` when its files are missing, have no images, or have fewer than two classes.
    """
    absent = missing_data(entry, data_root)
    if absent is not None:
        raise absent
    reader = READERS.get(entry.route.kind)
    if reader is None:
        raise UserError(
            f"{entry.name} cannot be read in this version: there is no reader for {entry.route.kind!r} routes",
            hint=f"its images in class folders can be read through a 'folder' route; readers: {', '.join(READERS)}",
        )
    found = reader(entry, dataset_folder(entry, data_root))
    if len(found.names) < 2:
        raise UserError(f"{entry.name} has {len(found.names)} class; there is nothing to tell apart")
    parts = found.parts
    if "all" in parts:
        whole = parts["all"]
        indices = split_indices(whole.labels, entry.splits.recipe, entry.name)
        parts = {split: whole.subset(chosen) for split, chosen in indices.items()}
    return RawDataset(class_words_of(entry, found.names), parts["train"], parts["test"])
