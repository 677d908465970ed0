"""Read the datasets of the few-shot benchmark of CoOp and Dassl: split files, lists, and ImageNet's folders.

The images keep the order of the split files and lists, because the published draws depend on that order
(``bolt/task/support.py``).
"""

import json
import os
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import DasslRoute, is_inside
from orchestrator.datasets.part import Contents, file_part
from orchestrator.datasets.routes.class_folders import find_class_folders, wnid_part, wnids
from orchestrator.util.errors import UserError, explained, shorten
from orchestrator.util.units import listed

PARTS = ("train", "val", "test")
SHOWN = 3
_AGAIN = "take the file again from the links in CoOp's DATASETS.md"
_JPEG = re.compile(r"\.jpe?g$", re.IGNORECASE)

Rows = Sequence[tuple[str, int, str]]
"""Path, label and class name of each image of a part."""


def read_zhou_split(entry: DatasetEntry, folder: Path) -> Contents:
    """Read ``split_zhou_NAME.json``: ``train``, ``val`` and ``test``, each a list of [path, label, class name].

    Raises ``UserError`` if the file is damaged, the labels are not 0 to C - 1, one label has two names, a path leaves
    the folder, an image is not there or listed twice, or a class has no training images or no test images.
    """
    assert isinstance(entry.route, DasslRoute)
    path = folder / entry.route.split_files[0]
    with explained(OSError, ValueError, RecursionError, what="cannot be read", where=str(path), hint=_AGAIN):
        split = json.loads(path.read_bytes().decode("utf-8-sig"))
    if not isinstance(split, dict) or not all(isinstance(split.get(part), list) for part in PARTS):
        raise _damaged(path, "does not have the three lists train, val and test")
    for part in PARTS:
        for number, row in enumerate(split[part]):
            if not isinstance(row, list) or [type(value) for value in row] != [str, int, str]:
                raise _damaged(path, f'{part}[{number}] is {shorten(repr(row))}, not ["path", label, "class name"]')
    return _contents({part: split[part] for part in PARTS}, entry.route, folder, path)


def read_aircraft_lists(entry: DatasetEntry, folder: Path) -> Contents:
    """Read FGVC Aircraft. The classes are in ``variants.txt``, and each part has a file with lines ``ID variant``.

    Raises ``UserError`` if a list is damaged, a variant is unknown, or an image is not there.
    """
    assert isinstance(entry.route, DasslRoute)
    assert entry.route.file is not None
    names = {name: label for label, name in enumerate(_lines(folder / "variants.txt"))}
    parts = {}
    for part in PARTS:
        path, rows = folder / entry.route.file.format(part=part), []
        for number, line in enumerate(_lines(path), start=1):
            image, _, variant = line.partition(" ")
            if variant not in names:
                raise _damaged(path, f"line {number} has the variant {variant!r}, which variants.txt does not have")
            rows.append((f"{image}.jpg", names[variant], variant))
        parts[part] = rows
    return _contents(parts, entry.route, folder, folder / entry.route.file.format(part="*"))


def _lines(path: Path) -> list[str]:
    with explained(OSError, UnicodeDecodeError, what="cannot be read", where=str(path), hint=_AGAIN):
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]


def read_imagenet_folders(entry: DatasetEntry, folder: Path) -> Contents:
    """Read ImageNet's ``train/`` and ``val/`` with a folder for each WordNet id; ``val`` is the test part.

    The images of a class are sorted by name. CoOp takes the order of the file system, so its draws differ by machine.
    """
    assert isinstance(entry.route, DasslRoute)
    root = entry.route.image_folder(folder, "train")
    found = {"train": find_class_folders(root / "train"), "test": find_class_folders(root / "val")}
    parts = {part: wnid_part(classes, folder) for part, classes in found.items()}
    if absent := _in_one_part(found["train"], found["test"]):
        raise UserError(absent, where=str(root), hint="unpack the archives of train and val completely")
    return list(wnids()), parts


def _in_one_part(train: Collection[str], test: Collection[str]) -> str:
    """Return a text that names the classes which lack training images or test images, or an empty text."""
    for kind, absent in (("training", set(test) - set(train)), ("test", set(train) - set(test))):
        if absent:
            shown = listed(sorted(absent), SHOWN)
            return f"{len(absent):,} of {len({*train, *test}):,} classes have no {kind} images: {shown}"
    return ""


def _contents(parts: Mapping[str, Rows], route: DasslRoute, folder: Path, path: Path) -> Contents:
    """Return the class names in label order, and the parts.

    Raises ``UserError`` as :func:`read_zhou_split`. ``path``: the file that lists the images.
    """
    names: dict[int, str] = {}
    for part, rows in parts.items():
        for image, label, name in rows:
            if names.setdefault(label, name) != name:
                raise _damaged(path, f"label {label} has the names {names[label]!r} and {name!r}")
            if not is_inside(image):
                raise _damaged(path, f"the path {shorten(image)!r} of {part} leaves the folder of images")
    if sorted(names) != list(range(len(names))):
        absent = min(set(range(len(names))) - names.keys())
        raise _damaged(path, f"no image has the label {absent}; labels are 0 to {len(names) - 1}")
    again = [image for image, count in Counter(row[0] for rows in parts.values() for row in rows).items() if count > 1]
    if again:
        raise _damaged(path, f"lists {len(again):,} images more than once: {listed(again, SHOWN)}")
    if one_sided := _in_one_part(*({names[row[1]] for row in parts[part]} for part in ("train", "test"))):
        raise _damaged(path, one_sided)
    first = next((rows[0][0] for rows in parts.values() if rows), ".")
    root = route.image_folder(folder, first)
    _refuse_missing([row[0] for rows in parts.values() for row in rows], root, path)
    return [names[label] for label in sorted(names)], {
        part: file_part([root / row[0] for row in rows], [row[1] for row in rows], folder)
        for part, rows in parts.items()
    }


def _refuse_missing(images: Sequence[str], root: Path, path: Path) -> None:
    """Raise ``UserError`` if one of the images is not below ``root``. ``path``: the file that lists the images."""
    folders = {image.rpartition("/")[0] for image in images}  # each folder is listed once: a look-up per image is slow
    held = (inner for inner in folders if (root / inner).is_dir())
    there = {f"{inner}/{name}".lstrip("/") for inner in held for name in os.listdir(root / inner)}
    if absent := [image for image in images if image not in there]:
        hint = "unpack the images again; CoOp's DATASETS.md says where each folder goes"
        stem = absent[0].rpartition(".")[0]
        if alike := sorted(name for name in there if name.rpartition(".")[0] == stem):
            renamed = _JPEG.search(alike[0]) and _JPEG.search(absent[0])
            remedy = "rename such files to the listed names" if renamed else "these are other files of the dataset"
            hint = f"there is {alike[0]} instead of {absent[0]}; {remedy}"
        what = f"{len(absent):,} of the {len(images):,} listed images are not in {root}: {listed(absent, SHOWN)}"
        raise UserError(what, where=str(path), hint=hint)


def _damaged(path: Path, what: str) -> UserError:
    return UserError(what, where=str(path), hint=_AGAIN)
