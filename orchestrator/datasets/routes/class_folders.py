"""Read images in class folders that are all equally deep, as archives and repositories lay them out.

``blanchon/AID`` has ``data/<class>/``, MLRSNet ``Images/<class>/``, RSI-CB128 ``<super-class>/<class>/``: the folders
that hold images themselves are the classes, and they must all be equally deep.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import Part, RouteContents, file_part
from orchestrator.datasets.routes.folder import is_image
from orchestrator.datasets.routes.imagenet import wnids
from orchestrator.util.errors import UserError

ClassFolders = Mapping[str, list[Path]]
"""Name of each class folder -> its images, both sorted."""


def read_class_folders(entry: DatasetEntry, folder: Path) -> RouteContents:
    """One part ``all``, or ``train/`` and ``test/`` where the recipe is ``official``. Labels follow the names' order.

    Raises ``UserError`` when the class folders are ambiguous, or the two parts differ in their classes.
    """
    roots = (
        {split: folder / split for split in ("train", "test")} if entry.splits.recipe == "official" else {"all": folder}
    )
    found = {split: find_class_folders(root) for split, root in roots.items()}
    names = list(next(iter(found.values())))
    for split, classes in found.items():
        odd = sorted(set(classes) ^ set(names))
        if odd:
            raise UserError(
                f"class folder {odd[0]!r} is in only one of {' and '.join(found)} ({split}/ differs)", where=str(folder)
            )
    return RouteContents(names, {split: _labelled(classes, names.index, folder) for split, classes in found.items()})


def read_wnid_folders(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Folders named by WordNet ids, of all or some of ImageNet's 1,000 classes: one part ``test``, labels in 0..999."""
    index = {wnid: label for label, wnid in enumerate(wnids())}
    classes = find_class_folders(folder, re.compile(r"n\d{8}"))
    strange = [name for name in classes if name not in index]
    if strange:
        raise UserError(f"the folder {strange[0]} is none of the 1,000 classes of ImageNet", where=str(folder))
    return RouteContents(list(index), {"test": _labelled(classes, index.__getitem__, folder)})


def read_numbered_folders(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Folders ``0``, ``1``, ... ``999``, whose number is the label: one part ``test``."""
    classes = find_class_folders(folder, re.compile(r"\d+"))
    beyond = [name for name in classes if int(name) >= entry.classes]
    if beyond:
        raise UserError(f"the folder {beyond[0]} is beyond the {entry.classes} classes", where=str(folder))
    ordered = {name: classes[name] for name in sorted(classes, key=int)}
    return RouteContents([str(label) for label in range(entry.classes)], {"test": _labelled(ordered, int, folder)})


def find_class_folders(root: Path, name: re.Pattern[str] | None = None) -> ClassFolders:
    """The folders below ``root`` that hold images, all equally deep.

    Images in ``root`` itself, hidden files, and folders whose name does not match ``name`` are ignored.

    Raises:
        UserError: there are none, they are not equally deep, two have the same name, or one holds no images.
    """
    images: dict[Path, list[Path]] = {}
    empty: list[Path] = []
    for place, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__MACOSX")
        here = Path(place)
        if here == root or (name is not None and not name.fullmatch(here.name)):
            continue
        held = sorted(here / file for file in files if is_image(Path(file)))
        if held:
            images[here] = held
        elif not folders:
            empty.append(here)
    if not images:
        raise UserError("there are no class folders of images", where=str(root))
    some = next(iter(images))
    depth = len(some.parts)
    for other in images:
        if len(other.parts) != depth:
            raise UserError(
                f"{some.relative_to(root)} and {other.relative_to(root)} hold images; class folders need equal depth",
                where=str(root),
            )
    hollow = [path for path in empty if len(path.parts) == depth]
    if hollow:
        raise UserError("the class folder holds no images", where=str(hollow[0]))
    ordered = sorted(images, key=lambda path: path.name)
    for first, second in pairwise(ordered):
        if first.name == second.name:
            raise UserError(
                f"{first.relative_to(root)} and {second.relative_to(root)} would be one class {first.name!r}",
                where=str(root),
                hint="rename one of them",
            )
    return {path.name: images[path] for path in ordered}


def _labelled(classes: ClassFolders, label_of: Callable[[str], int], root: Path) -> Part:
    files = [path for paths in classes.values() for path in paths]
    return file_part(files, [label_of(name) for name, paths in classes.items() for _ in paths], root)
