"""Read the few-shot benchmark of CoOp and Dassl where a lab has it: split files, lists, and ImageNet's folders.

The images keep the order of the files, because the published draws depend on it (``bolt/task/field_draws.py``).
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import DasslRoute, is_inside
from orchestrator.datasets.part import RouteContents, file_part
from orchestrator.datasets.routes.class_folders import find_class_folders, wnids
from orchestrator.util.errors import UserError, shorten
from orchestrator.util.units import listed

PARTS = ("train", "val", "test")
SHOWN = 3

Rows = Sequence[tuple[str, int, str]]
"""Path, label and class name of each image of a part."""


def read_zhou_split(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Read ``split_zhou_NAME.json``: ``train``, ``val`` and ``test``, each a list of [path, label, class name].

    Raises ``UserError`` for a file that is damaged, labels that are not 0 to C - 1, two names of one label, a path that
    leaves the folder, and images that are not there.
    """
    assert isinstance(entry.route, DasslRoute)
    assert entry.route.file is not None
    path = folder / entry.route.file
    try:
        split = json.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(path, f"cannot be read: {shorten(str(error))}") from None
    if not isinstance(split, dict) or not all(isinstance(split.get(part), list) for part in PARTS):
        raise _damaged(path, "does not have the three lists train, val and test")
    for part in PARTS:
        for number, row in enumerate(split[part]):
            if not isinstance(row, list) or [type(value) for value in row] != [str, int, str]:
                raise _damaged(path, f'{part}[{number}] is {shorten(repr(row))}, not ["path", label, "class name"]')
    return _contents({part: split[part] for part in PARTS}, entry.route, folder, path)


def read_aircraft_lists(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Read FGVC Aircraft: ``variants.txt`` has the classes, and each part a list of lines ``ID variant``.

    Raises ``UserError`` for a list that is damaged, an unknown variant, and images that are not there.
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
    return _contents(parts, entry.route, folder, folder / entry.route.file)


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise _damaged(path, f"cannot be read: {error}") from None


def read_imagenet_folders(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Read ImageNet's ``train/`` and ``val/`` with a folder for each WordNet id; ``val`` is the test part.

    Images of a class are sorted by name. CoOp lists them as the file system does, so its draws differ by machine.
    """
    assert isinstance(entry.route, DasslRoute)
    index, parts = {wnid: label for label, wnid in enumerate(wnids())}, {}
    root = image_folder(entry.route, folder, "train")
    for part, name in (("train", "train"), ("test", "val")):
        classes = find_class_folders(root / name)
        if unknown := [wnid for wnid in classes if wnid not in index]:
            raise UserError(f"{unknown[0]} is none of the 1,000 classes of ImageNet", where=str(root / name))
        files = [path for paths in classes.values() for path in paths]
        parts[part] = file_part(files, [index[wnid] for wnid, paths in classes.items() for _ in paths], folder)
    return list(index), parts


def image_folder(route: DasslRoute, folder: Path, inside: str) -> Path:
    """Return the folder that paths are relative to: as in CoOp's instructions, or the dataset's own folder.

    ``inside``: a path that exists in it.
    """
    named = folder / (route.images or ".")
    return folder if not (named / inside).exists() and (folder / inside).exists() else named


def _contents(parts: Mapping[str, Rows], route: DasslRoute, folder: Path, path: Path) -> RouteContents:
    """Check labels, names and paths; returns the class names in label order, and the parts."""
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
    first = next((rows[0][0] for rows in parts.values() if rows), ".")
    root = image_folder(route, folder, first)
    _refuse_missing([row[0] for rows in parts.values() for row in rows], root, path)
    return [names[label] for label in sorted(names)], {
        part: file_part([root / row[0] for row in rows], [row[1] for row in rows], folder)
        for part, rows in parts.items()
    }


def _refuse_missing(images: Sequence[str], root: Path, path: Path) -> None:
    """Raise ``UserError`` if images of a list are not there. Each folder is listed once."""
    wanted = defaultdict(list)
    for image in images:
        place = PurePosixPath(image)
        wanted[place.parent].append(place.name)
    absent = []
    for place, files in wanted.items():
        there = set(os.listdir(root / place)) if (root / place).is_dir() else set()
        absent += [str(place / name) for name in files if name not in there]
    if absent:
        raise UserError(
            f"{len(absent):,} of its {len(images):,} images are not in {root}: {listed(absent, SHOWN)}",
            where=str(path),
            hint="unpack the images again; CoOp's DATASETS.md says where each folder goes",
        )


def _damaged(path: Path, what: str) -> UserError:
    return UserError(what, where=str(path), hint="take the file again from the links in CoOp's DATASETS.md")
