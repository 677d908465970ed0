"""Read the unpacked archive of CUB-200-2011."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import RouteContents, file_part
from orchestrator.util.errors import UserError


def read_cub(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Read CUB-200-2011: lists of images, labels (from 1), parts and classes next to ``images/``.

    Raises ``UserError`` when a list is missing or the lists do not agree.
    """
    root = next((path.parent for path in sorted(folder.rglob("train_test_split.txt"))), None)
    if root is None:
        raise UserError("there is no train_test_split.txt", where=str(folder))
    names = _table(root / "classes.txt")
    images = _table(root / "images.txt")
    labels = _table(root / "image_class_labels.txt")
    in_train = _table(root / "train_test_split.txt")
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
    """Read lines ``number rest`` of a text file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path)) from None
    try:
        return dict(line.strip().split(" ", 1) for line in lines if line.strip())
    except ValueError:
        raise UserError("needs lines of a number, a space and a text", where=str(path)) from None
