"""A part of a dataset: labelled images that are decoded one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bolt.clip.image_files import UPRIGHT, ImageSource, Reading, open_image
from orchestrator.catalog import DatasetEntry
from orchestrator.util.errors import UserError


@dataclass(frozen=True)
class Part:
    """Labelled images, decoded one at a time. :func:`make_part` and :func:`file_part` make parts.

    Attributes:
        labels: class of each image, (N,).
        source: index -> the image's file, the content of that file, or an open image.
        origin: index -> where the image is in the dataset's folder, for messages.
        indices: position of each image in the list that the dataset's reader returned, (N,).
        reading: how the pixels are read.
    """

    labels: NDArray[np.int64]
    source: Callable[[int], ImageSource]
    origin: Callable[[int], str]
    indices: NDArray[np.int64]
    reading: Reading = UPRIGHT

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, index: int) -> Image.Image:
        """Decode an image, in mode ``RGB`` or ``L``. Raises one of :data:`bolt.clip.image_files.UNREADABLE`."""
        return open_image(self.source(index), self.reading)

    def subset(self, chosen: NDArray[np.int64]) -> Part:
        """Return the images at the positions ``chosen``, in that order."""
        return replace(
            self,
            labels=self.labels[chosen],
            source=lambda i: self.source(int(chosen[i])),
            origin=lambda i: self.origin(int(chosen[i])),
            indices=self.indices[chosen],
        )


Contents = tuple[list[str], dict[str, Part]]
"""What a reader finds in a dataset's files: the class names in label order, and the parts by name."""


@dataclass(frozen=True)
class RawDataset:
    """An opened dataset.

    Attributes:
        class_names: the words for the classes, in label order.
        validation: the validation part; ``None`` for the many datasets that have none. Some draws of supports use it,
            and some protocols let methods choose settings on it.
    """

    class_names: tuple[str, ...]
    train: Part
    test: Part
    validation: Part | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The training and the test part, by the names ``train`` and ``test``."""
        return {"train": self.train, "test": self.test}

    def class_sizes(self, part: str) -> list[int]:
        """Return the number of images of each class in a part, in label order."""
        sizes: list[int] = np.bincount(self.parts[part].labels, minlength=len(self.class_names)).tolist()
        return sizes


def make_part(labels: Sequence[int] | NDArray[np.int64], source: Callable[[int], ImageSource],
               origin: Callable[[int], str]) -> Part:  # fmt: skip
    """Make a part of images with these labels; ``source`` and ``origin`` are the fields of :class:`Part`."""
    found = np.asarray(labels, dtype=np.int64)
    return Part(found, source, origin, np.arange(len(found)))


def file_part(files: Sequence[Path], labels: Sequence[int], root: Path) -> Part:
    """Make a part of images that are files under ``root``."""
    return make_part(labels, lambda i: files[i], lambda i: files[i].relative_to(root).as_posix())


def refetch_hint(entry: DatasetEntry) -> str:
    """Return the hint that damaged files can be fetched again."""
    return f"get it again: python -m orchestrator data prepare {entry.name}"


def numbered_classes(entry: DatasetEntry, labels: Iterable[int], folder: Path) -> list[str]:
    """Return ``0``, ``1``, ... as the names of classes that the data's files number but do not name.

    The entry's ``class_names`` replace these numbers later. Raises ``UserError`` if the entry has no ``class_names``.
    """
    if entry.class_names is None:
        hint = f"give class_names in the catalog's entry of {entry.name}, or {refetch_hint(entry)}"
        raise UserError("the labels are numbers, and no file names the classes", where=str(folder), hint=hint)
    return [str(label) for label in range(max(labels, default=-1) + 1)]
