"""Read datasets whose format no other dataset has: the drawn world, scikit-learn's digits, and CUB-200-2011."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.yaml_files import read_text
from orchestrator.datasets.part import Contents, Part, file_part, make_part
from orchestrator.util.errors import UserError


def read_toy(entry: DatasetEntry, folder: Path) -> Contents:
    """Draw the images of one of the demo's datasets."""
    from orchestrator.drawn_world.drawing import draw_split
    from orchestrator.drawn_world.tasks import TASKS

    task: str = entry.route.task  # type: ignore[union-attr]
    parts = {split: _array_part(*draw_split(task, split), f"{task}/{split}") for split in ("train", "test")}
    return list(TASKS[task].class_names), parts


def read_sklearn(entry: DatasetEntry, folder: Path) -> Contents:
    """Load the handwritten digits of scikit-learn."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    ink = np.rint(digits.images * (255.0 / 16.0)).astype(np.uint8)  # stored as 0 to 16, white on black
    pixels, labels = np.repeat(ink[..., None], 3, axis=-1), digits.target.astype(np.int64)
    return [str(digit) for digit in range(10)], {"all": _array_part(pixels, labels, entry.name)}


def _array_part(pixels: NDArray[np.uint8], labels: NDArray[np.int64], origin: str) -> Part:
    """Make a part of the images in one uint8 array, (N, H, W, 3)."""
    return make_part(labels, lambda i: Image.fromarray(pixels[i]), lambda i: f"{origin}[{i}]")


def read_cub(entry: DatasetEntry, folder: Path) -> Contents:
    """Read CUB-200-2011: images in ``images/``, and lists beside it that state the classes, labels and split.

    Raises ``UserError`` when a list is missing or the lists do not agree.
    """
    root = next((path.parent for path in sorted(folder.rglob("train_test_split.txt"))), None)
    if root is None:
        raise UserError("there is no train_test_split.txt", where=str(folder))
    lists = ("classes", "images", "image_class_labels", "train_test_split")
    names, images, labels, in_train = (_table(root / f"{name}.txt") for name in lists)
    if not images.keys() == labels.keys() == in_train.keys() or not set(labels.values()) <= names.keys():
        what = "images.txt, image_class_labels.txt and train_test_split.txt do not list the same images"
        raise UserError(f"{what}, or name a class that classes.txt does not have", where=str(root))
    order = {number: label for label, number in enumerate(sorted(names, key=int))}
    parts = {}
    for split, flag in (("train", "1"), ("test", "0")):
        chosen = [number for number in images if in_train[number] == flag]
        files = [root / "images" / images[number] for number in chosen]
        parts[split] = file_part(files, [order[labels[number]] for number in chosen], folder)
    return [names[number].partition(".")[2] or names[number] for number in order], parts


def _table(path: Path) -> dict[str, str]:
    """Return the lines ``number text`` of a file as number -> text. Raises ``UserError`` for any other line."""
    lines = read_text(path).splitlines()
    try:
        return dict(line.strip().split(" ", 1) for line in lines if line.strip())
    except ValueError:
        raise UserError("needs lines of a number, a space and a text", where=str(path)) from None
