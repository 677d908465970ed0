"""Open a dataset: from a catalog entry to its training and test parts."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
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
    absent = missing_data(entry, data_root)
    if absent is not None:
        raise absent
    reader = READERS[getattr(entry.route, "layout", entry.route.kind)]
    found = reader(entry, dataset_folder(entry, data_root))
    if len(found.names) < 2:
        raise UserError(
            f"{entry.name} has {'one class' if found.names else 'no classes'}; classification needs at least two",
            where=f"dataset {entry.name}, field route",
            hint="name files of at least two classes in the route",
        )
    parts = _train_and_test(entry, found.parts)
    if excluded := excluded_images(entry, data_root):
        parts = {split: _without(part, excluded.keys()) for split, part in parts.items()}
    for split, part in parts.items():
        if not len(part) and (split == "test" or entry.has_training_images):
            raise UserError(
                f"{entry.name} has no images in its {split} split",
                where=f"dataset {entry.name}, field route",
                hint="check the files that the route names for this split, and the list of excluded images",
            )
    return RawDataset(class_words_of(entry, found.names), parts["train"], parts["test"])


def _train_and_test(entry: DatasetEntry, found: Mapping[str, Part]) -> Mapping[str, Part]:
    """The two parts by the entry's split recipe. A dataset that is only evaluated on may lack training images."""
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


def _without(part: Part, excluded: Container[str]) -> Part:
    return part.subset(np.flatnonzero([part.origin(index) not in excluded for index in range(len(part))]))


def class_words_of(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """The class words for prompts, in label order.

    The catalog entry names classes by a list in label order, or by a mapping from the names in the data. Without
    either, the names in the data are used, with underscores as spaces and with the entry's ``renamed`` applied. Copies
    of a dataset spell its names differently, so a mapping's keys match regardless of case, spaces, underscores and
    hyphens.

    Raises ``UserError`` when the numbers of names differ, a mapping lacks a class, or two classes get the same words.
    """
    given = class_names_of(entry)
    where = f"dataset {entry.name}, field class_names"
    if given is None:
        renamed = _Spellings(entry.renamed)
        return _distinct([renamed.get(name) or name.replace("_", " ").strip() for name in from_data], from_data, where)
    if isinstance(given, Mapping):
        spellings = _Spellings(given)
        words = [spellings.get(name) for name in from_data]
        missing = [name for name, word in zip(from_data, words, strict=True) if word is None]
        if missing:
            raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
        return _distinct([word for word in words if word is not None], from_data, where)
    if len(given) != len(from_data):
        raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
    return tuple(given)


def _distinct(words: Sequence[str], from_data: Sequence[str], where: str) -> tuple[str, ...]:
    """``words``, if no two are equal without regard to case. Raises ``UserError`` otherwise."""
    first: dict[str, str] = {}
    for word, name in zip(words, from_data, strict=True):
        other = first.setdefault(word.casefold(), name)
        if other is not name:
            raise UserError(f"the classes {other!r} and {name!r} would both be called {word!r}", where=where,
                            hint="give them different words")  # fmt: skip
    return tuple(words)


class _Spellings:
    """A mapping from names to words: exact names first, then only their letters and digits."""

    def __init__(self, words: Mapping[str, str]) -> None:
        self.words = words
        plain = [_plain(name) for name in words]
        self.by_plain = {key: words[name] for key, name in zip(plain, words, strict=True) if plain.count(key) == 1}

    def get(self, name: str) -> str | None:
        return self.words.get(name) or self.by_plain.get(_plain(name))


def _plain(name: str) -> str:
    return "".join(letter for letter in name.casefold() if letter.isalnum())
