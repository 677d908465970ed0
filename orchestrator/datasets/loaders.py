"""Loaders: from a catalog entry to labelled PIL images, one loader per kind of route.

A loader gives the parts a dataset comes with - ``train`` and ``test``, or one part ``all`` that a split recipe
divides. Everything downstream (decoding, features, supports) is the same for every dataset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from orchestrator.catalog import DatasetEntry, class_words, missing_data
from orchestrator.datasets.splits import split_indices
from orchestrator.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"})


@dataclass(frozen=True)
class Part:
    """Labelled images, decoded one at a time.

    Attributes:
        labels: class of each image, (N,).
        read: index -> image, as stored (any size, any mode).
        origin: index -> where it came from, for messages.
    """

    labels: NDArray[np.int64]
    read: Callable[[int], Image.Image]
    origin: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, indices: NDArray[np.int64]) -> Part:
        """The images at ``indices``, in that order."""
        return Part(
            self.labels[indices],
            lambda i: self.read(int(indices[i])),
            lambda i: self.origin(int(indices[i])),
        )


@dataclass(frozen=True)
class RawDataset:
    """A dataset as it lies on disk or is drawn: class words in label order, and its two parts."""

    class_names: tuple[str, ...]
    train: Part
    test: Part

    def part(self, split: str) -> Part:
        """``train`` or ``test``."""
        return {"train": self.train, "test": self.test}[split]


def open_dataset(entry: DatasetEntry, data_root: Path | None) -> RawDataset:
    """Open a dataset without decoding anything.

    Raises ``UserError`` when its files are missing, have no images, or have fewer than two classes.
    """
    absent = missing_data(entry, data_root)
    if absent is not None:
        raise absent
    loader = LOADERS.get(entry.route.kind)
    if loader is None:
        raise UserError(
            f"{entry.name} cannot be read in this version: there is no loader for {entry.route.kind!r} routes",
            hint=f"its images in class folders can be read through a 'folder' route; loaders: {', '.join(LOADERS)}",
        )
    class_names, parts = loader(entry, data_root)
    if len(class_names) < 2:
        raise UserError(f"{entry.name} has {len(class_names)} class; there is nothing to tell apart")
    if "all" in parts:
        whole = parts["all"]
        indices = split_indices(whole.labels, entry.splits.recipe, entry.name)
        parts = {split: whole.subset(chosen) for split, chosen in indices.items()}
    return RawDataset(tuple(class_names), parts["train"], parts["test"])


Loader = Callable[[DatasetEntry, Path | None], tuple[Sequence[str], Mapping[str, Part]]]


def _toy(entry: DatasetEntry, data_root: Path | None) -> tuple[Sequence[str], Mapping[str, Part]]:
    from orchestrator.datasets.toy.tasks import TASKS, draw

    task: str = entry.route.task  # type: ignore[union-attr]
    parts = {}
    for split in ("train", "test"):
        pixels, labels = draw(task, split)
        parts[split] = _array_part(pixels, labels, f"{task}/{split}")
    return _words(entry, TASKS[task].class_names), parts


def _sklearn(entry: DatasetEntry, data_root: Path | None) -> tuple[Sequence[str], Mapping[str, Part]]:
    from orchestrator.datasets.toy.handwritten import load

    pixels, labels = load()
    return _words(entry, [str(digit) for digit in range(10)]), {"all": _array_part(pixels, labels, entry.name)}


def _folder(entry: DatasetEntry, data_root: Path | None) -> tuple[Sequence[str], Mapping[str, Part]]:
    assert data_root is not None, "missing_data() lets no folder dataset through without a root"
    root = data_root / entry.route.folder  # type: ignore[union-attr]
    present = ["train", "test"] if entry.splits.recipe == "official" else ["all"]
    folders = sorted(p.name for p in (root / present[0]).iterdir() if p.is_dir() and not p.name.startswith("."))
    label_of = {folder: label for label, folder in enumerate(folders)}
    parts = {}
    for split in present:
        files, labels = [], []
        for folder in sorted(p for p in (root / split).iterdir() if p.is_dir() and not p.name.startswith(".")):
            if folder.name not in label_of:
                raise UserError(
                    f"class folder {folder.name!r} is in {split}/ but not in {present[0]}/", where=str(root)
                )
            found = sorted(p for p in folder.rglob("*") if p.suffix.lower() in IMAGE_SUFFIXES)
            if not found:
                raise UserError("the class folder holds no images", where=str(folder))
            files += found
            labels += [label_of[folder.name]] * len(found)
        parts[split] = _file_part(files, labels)
    return _words(entry, folders), parts


LOADERS: dict[str, Loader] = {"toy": _toy, "sklearn": _sklearn, "folder": _folder}


def _array_part(pixels: NDArray[np.uint8], labels: NDArray[np.int64], origin: str) -> Part:
    """Images held as one uint8 array (N, H, W, 3)."""
    return Part(labels.astype(np.int64), lambda i: Image.fromarray(pixels[i]), lambda i: f"{origin}[{i}]")


def _file_part(files: list[Path], labels: list[int]) -> Part:
    def read(index: int) -> Image.Image:
        with Image.open(files[index]) as image:
            image.load()
            return image

    return Part(np.asarray(labels, dtype=np.int64), read, lambda i: str(files[i]))


def _words(entry: DatasetEntry, from_data: Sequence[str]) -> tuple[str, ...]:
    """The words that go into prompts, in label order.

    The catalog may name classes as a list in label order or as a mapping from folder name; otherwise the data's own
    names serve, underscores read as spaces.
    """
    given = class_words(entry)
    if given is None:
        return tuple(name.replace("_", " ") for name in from_data)
    where = f"dataset {entry.name}, field class_names"
    if isinstance(given, Mapping):
        missing = [name for name in from_data if name not in given]
        if missing:
            raise UserError(f"no words for the class folder(s) {', '.join(missing[:5])}", where=where)
        return tuple(given[name] for name in from_data)
    if len(given) != len(from_data):
        raise UserError(f"{len(given)} names for {len(from_data)} classes found", where=where)
    return tuple(given)
