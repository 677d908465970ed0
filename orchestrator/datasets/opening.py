"""Open a dataset: from a catalog entry to its training and test parts."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from orchestrator.catalog import DatasetEntry, dataset_folder, excluded_images, missing_data
from orchestrator.datasets.class_words import class_words_of
from orchestrator.datasets.part import Part, RawDataset, file_part
from orchestrator.datasets.routes import READERS
from orchestrator.datasets.splits import split_indices
from orchestrator.util.errors import UserError


def open_dataset(entry: DatasetEntry, data_root: Path | None) -> RawDataset:
    """Open a dataset without its excluded images. No image is decoded.

    Images are excluded after the split, so that an exclusion does not move other images between the parts.

    Raises ``UserError`` when files are missing, there are fewer than two classes, a label is not the number of a class,
    the data's parts do not fit the entry's split recipe, or a part has no images.
    """
    if absent := missing_data(entry, data_root):
        raise absent
    folder, where = dataset_folder(entry, data_root), f"dataset {entry.name}, field route"
    names, found = READERS[getattr(entry.route, "layout", entry.route.kind)](entry, folder)
    if len(names) < 2:
        what = f"{entry.name} has {'one class' if names else 'no classes'}; classification needs at least two"
        raise UserError(what, where=where, hint="name files of at least two classes in the route")
    for split, part in found.items():
        if len(part) and not 0 <= part.labels.min() <= part.labels.max() < len(names):
            what = f"the labels of {split} are {part.labels.min()} to {part.labels.max()}"
            what += f", but the {len(names)} classes of {entry.name} have the labels 0 to {len(names) - 1}"
            hint = "the file of the labels was changed, or belongs to another copy of the data"
            raise UserError(what, where=str(folder), hint=hint)
    parts = {split: replace(part, reading=entry.reading) for split, part in _train_and_test(entry, found).items()}
    if excluded := excluded_images(entry, data_root):
        kept = {split: [part.origin(i) not in excluded for i in range(len(part))] for split, part in parts.items()}
        parts = {split: part.subset(np.flatnonzero(kept[split])) for split, part in parts.items()}
    for split, part in parts.items():
        if not len(part) and (split == "test" or (split == "train" and entry.has_training_images)):
            hint = "check the files that the route names for this split, and the list of excluded images"
            if entry.splits.recipe == "eighty_twenty":
                hint = "every class needs at least two images for an 80/20 split"
            raise UserError(f"{entry.name} has no images in its {split} split", where=where, hint=hint)
    return RawDataset(class_words_of(entry, names), parts["train"], parts["test"], parts.get("val"))


def _train_and_test(entry: DatasetEntry, found: Mapping[str, Part]) -> Mapping[str, Part]:
    """Return a dataset's parts: the parts ``found``, or the parts that a split recipe makes of the part ``all``.

    The training part is empty if the data has none and the entry states no training images.

    Raises ``UserError`` if the parts do not fit the recipe.
    """
    recipe, where = entry.splits.recipe, f"dataset {entry.name}, field splits"
    if recipe == "official":
        wanted = {"train", "test"} if entry.has_training_images else {"test"}
        if absent := min(wanted - found.keys(), default=""):
            what = f"{entry.name} comes without a {absent!r} split, which the recipe 'official' needs"
            hint = f"name the images of the split {absent!r} in the route or in the table; or give all as one part and "
            raise UserError(what, where=where, hint=hint + "use the recipe 'eighty_twenty'")
        return {"train": file_part([], [], Path()), **found}
    if "all" not in found:
        what = f"{entry.name} comes split into {' and '.join(found)}, which the recipe {recipe!r} would ignore"
        hint = "use the recipe 'official', or give all as one part: 'all' in the route, or no column for the split"
        raise UserError(what, where=where, hint=hint)
    whole = found["all"]
    return {split: whole.subset(chosen) for split, chosen in split_indices(whole.labels, recipe, entry.name).items()}
