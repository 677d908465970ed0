"""Recognise the layout of a user's images: ``train/`` and ``test/``, class folders side by side, or a table.

Nothing is decoded here. The result is the route and the split recipe of a catalog entry, and the class names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bolt.image_folders import class_folders, dataset_folder, images_in, part_folders, unused_notes
from orchestrator.datasets.routes.class_folders import refuse_folder_of_datasets, refuse_untested
from orchestrator.datasets.routes.manifest import paths_and_labels, read_table
from orchestrator.util.errors import UserError

TABLES = (".csv", ".parquet")
COLUMNS = {
    "path": ("path", "file", "filename", "file_name", "image", "image_path", "filepath"),
    "label": ("label", "class", "class_name", "category", "target", "y"),
    "split": ("split", "part", "subset", "fold"),
}
"""Accepted column names of a table; the first that exists is used."""

_FOREIGN_BYTES = re.compile("[\ud800-\udfff]")
"""Lone surrogates, by which Python represents the bytes of a file name that are not UTF-8."""


class Layout(NamedTuple):
    """The layout of a folder or table of images.

    Attributes:
        data_root: the folder to pass as ``--data-root``.
        names: class names in the data.
        notes: remarks about files that are not used.
    """

    data_root: Path
    route: Mapping[str, Any]
    recipe: str
    names: tuple[str, ...]
    notes: tuple[str, ...]


def find_layout(path: Path) -> Layout:
    """Find out how a folder of images, or a table of them, is laid out.

    Raises ``UserError`` if the path does not exist, it has no class folders, a part is missing, a class folder is
    empty, or there are fewer than two classes.
    """
    path = path.expanduser().absolute()
    if path.is_file():
        layout = _of_table(path)
    elif path.is_dir():
        layout = _of_folder(path)
    else:
        raise UserError(f"there is no {path}", hint="give a folder of images, or a .csv or .parquet table of them")
    if foreign := next(filter(_FOREIGN_BYTES.search, layout.names), None):
        raise UserError(f"the name of the class folder {foreign!a} is not UTF-8", where=str(path), hint="rename it")
    if len(layout.names) < 2:
        raise UserError(
            f"there is only one class, {layout.names[0]!r}; classification needs at least two",
            where=str(path),
            hint="put the images of each class into a folder of its own, side by side",
        )
    return layout


def _of_folder(folder: Path) -> Layout:
    folder = dataset_folder(folder)
    refuse_folder_of_datasets(folder)
    found = part_folders(folder)
    parts: dict[str, Path] = {name: found[name] for name in ("train", "test") if name in found}
    if len(parts) == 1:
        here, missing = ("train", "test") if "train" in parts else ("test", "train")
        beside = ", ".join([path.name for path in class_folders(folder) if path not in found.values()][:6])
        beside = ", ".join(filter(None, (beside, *(found[name].name for name in found if name not in (here, "all")))))
        raise UserError(
            f"there is {parts[here].name}/ but no {missing}/" + (f"; the other folders are {beside}" if beside else ""),
            where=str(folder),
            hint=f"rename the folder that holds the {missing} images to {missing}, or put all class folders side by "
            "side for an 80/20 split",
        )
    recipe = "official" if parts else "eighty_twenty"
    if not parts and (folder / "all").is_dir():
        if "all" not in found:
            raise UserError("a class folder cannot be called 'all'", where=str(folder), hint="rename it")
        parts = {"all": found["all"]}
    roots = [*parts.values()] or [folder]
    names = [[path.name for path in class_folders(root)] for root in roots]
    if not names[0]:
        loose = len(images_in(folder))
        what = f"it holds {loose} images and no class folders" if loose else "it holds no class folders"
        raise UserError(what, where=str(folder), hint="put the images of each class into a folder of its own")
    refuse_untested(names[0], names[-1], folder)
    nested = [path for path in class_folders(roots[0]) if len(class_folders(path)) > 1 and not images_in(path)]
    notes = unused_notes(folder, roots)
    if nested:
        notes.append(
            f"the images of {nested[0].name} lie in {len(class_folders(nested[0]))} sub-folders, and so do those of "
            f"{len(nested) - 1} other class folders; if the sub-folders are the classes, put them side by side"
        )
    return Layout(folder.parent, {"kind": "folder", "folder": folder.name}, recipe, tuple(names[0]), tuple(notes))


def _of_table(path: Path) -> Layout:
    if path.suffix not in TABLES:
        raise UserError(f"{path.name} is neither a folder nor a .csv or .parquet table", where=str(path))
    columns = read_table(path)
    chosen = {key: name for key, names in COLUMNS.items() for name in reversed(names) if name in columns}
    _, labels = paths_and_labels(columns, chosen, path)
    route = {"kind": "manifest", "folder": path.parent.name, "file": path.name, "columns": chosen}
    recipe = "official" if "split" in chosen else "eighty_twenty"
    return Layout(path.parent.parent, route, recipe, tuple(sorted(set(labels))), ())
