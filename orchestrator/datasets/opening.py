"""From a catalog entry to a dataset's two parts, whatever route its images come by."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path

import numpy as np

from orchestrator.catalog import DatasetEntry, dataset_folder, excluded_images, missing_data
from orchestrator.datasets.part import Part, RawDataset, file_part
from orchestrator.datasets.routes import READERS
from orchestrator.datasets.splits import split_indices
from orchestrator.datasets.words import class_words_of
from orchestrator.errors import UserError


def open_dataset(entry: DatasetEntry, data_root: Path | None) -> RawDataset:
    """Open a dataset without decoding anything, less the images that are on record as left out.

    An image is left out after the parts are made, so that the others stay in theirs.

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
    if "train" not in parts and not entry.is_source:  # variants that are only scored on
        parts = {**parts, "train": file_part([], [], Path())}
    if excluded := excluded_images(entry, data_root):
        parts = {split: _without(part, excluded.keys()) for split, part in parts.items()}
    return RawDataset(class_words_of(entry, found.names), parts["train"], parts["test"])


def _without(part: Part, excluded: Container[str]) -> Part:
    return part.subset(np.flatnonzero([part.origin(index) not in excluded for index in range(len(part))]))
