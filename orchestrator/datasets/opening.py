"""Open a dataset: from a catalog entry to its training and test parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from orchestrator.catalog import DatasetEntry, class_names_of, dataset_folder, excluded_images, missing_data
from orchestrator.datasets.part import Part, RawDataset, file_part
from orchestrator.datasets.routes import READERS
from orchestrator.datasets.splits import split_indices
from orchestrator.util.errors import UserError


def open_dataset(entry: DatasetEntry, data_root: Path | None) -> RawDataset:
    """Open a dataset without decoding anything, and without its excluded images.

    Images are excluded after the split, so that an exclusion does not move other images between the parts.

    Raises ``UserError`` when files are missing, there are fewer than two classes, the data's parts do not fit the
    entry's split recipe, or a part has no images.
    """
    if absent := missing_data(entry, data_root):
        raise absent
    reader = READERS[getattr(entry.route, "layout", entry.route.kind)]
    names, found = reader(entry, dataset_folder(entry, data_root))
    if len(names) < 2:
        raise UserError(
            f"{entry.name} has {'one class' if names else 'no classes'}; classification needs at least two",
            where=f"dataset {entry.name}, field route",
            hint="name files of at least two classes in the route",
        )
    parts = _train_and_test(entry, found)
    if excluded := excluded_images(entry, data_root):
        parts = {
            split: part.subset(np.flatnonzero([part.origin(index) not in excluded for index in range(len(part))]))
            for split, part in parts.items()
        }
    for split, part in parts.items():
        if not len(part) and (split == "test" or entry.has_training_images):
            raise UserError(
                f"{entry.name} has no images in its {split} split",
                where=f"dataset {entry.name}, field route",
                hint="check the files that the route names for this split, and the list of excluded images",
            )
    return RawDataset(class_words_of(entry, names), parts["train"], parts["test"])


def _train_and_test(entry: DatasetEntry, found: Mapping[str, Part]) -> Mapping[str, Part]:
    """Divide by the entry's split recipe. A dataset that is only evaluated on may lack training images."""
    recipe = entry.splits.recipe
    if recipe == "official":
        wanted = {"train", "test"} if entry.has_training_images else {"test"}
        if not wanted <= found.keys():
            absent = min(wanted - found.keys())
            raise UserError(
                f"{entry.name} comes without a {absent!r} split, which the recipe official needs",
                where=f"dataset {entry.name}, field splits",
                hint="name its files under that split in the route, or give all images as the part 'all' and use "
                "eighty_twenty",
            )
        return {"train": file_part([], [], Path()), **found}
    if "all" not in found:
        raise UserError(
            f"{entry.name} comes split into {' and '.join(found)}, which the recipe {recipe} would ignore",
            where=f"dataset {entry.name}, field splits",
            hint="use the recipe official, or give all images as the part 'all' in the route",
        )
    whole = found["all"]
    return {split: whole.subset(chosen) for split, chosen in split_indices(whole.labels, recipe, entry.name).items()}


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """Return the class words for prompts, in label order.

    The catalog entry names classes by a list in label order, or by a mapping from the names in the data. Without
    either, the names in the data are used, with underscores as spaces and with the entry's ``renamed`` applied. Copies
    of a dataset spell its names differently, so a key that is not exactly there matches the only name with its letters
    and digits.

    Raises ``UserError`` when the numbers of names differ, a mapping lacks a class, or two classes get the same words.
    """
    given = class_names_of(entry)
    where = f"dataset {entry.name}, field class_names"
    if isinstance(given, tuple):
        if len(given) != len(from_data):
            raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
        return given
    renamed = entry.renamed if given is None else given
    plain = Counter(map(_plain, renamed))
    by_plain = {_plain(name): word for name, word in renamed.items() if plain[_plain(name)] == 1}
    words = [renamed.get(name) or by_plain.get(_plain(name), "") for name in from_data]
    if given is None:
        words = [word or name.replace("_", " ").strip() for name, word in zip(from_data, words, strict=True)]
    elif missing := [name for name, word in zip(from_data, words, strict=True) if not word]:
        raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
    check_distinct(words, from_data, where)
    return tuple(words)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())


def check_distinct(words: Sequence[str], names: Sequence[str], where: str = "") -> None:
    """Raise ``UserError`` if the words of two classes differ at most in case. ``names``: the classes in the data."""
    first: dict[str, str] = {}
    for word, name in zip(words, names, strict=True):
        if (other := first.setdefault(word.casefold(), name)) is not name:
            raise UserError(
                f"the classes {other!r} and {name!r} would both be called {word!r}",
                where=where,
                hint="their prompts would be equal; give them different words, or merge them",
            )
