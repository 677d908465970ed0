"""Recognise the layout of a user's images: ``train/`` and ``test/``, class folders side by side, or a table.

Nothing is decoded here. The result is the route and the split recipe of a catalog entry, and the class names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.datasets.routes.class_folders import (
    class_folders,
    holds_class_folders,
    images_in,
    is_image,
    refuse_folder_of_datasets,
    refuse_untested,
)
from orchestrator.datasets.routes.manifest import paths_and_labels, read_table
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize

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
    refuse_folder_of_datasets(folder)
    parts = [name for name in ("train", "test") if holds_class_folders(folder / name)]
    if len(parts) == 1:
        here, other = parts[0], "test" if parts == ["train"] else "train"
        beside = ", ".join([path.name for path in class_folders(folder) if path.name not in (here, "all")][:6])
        raise UserError(
            f"there is {here}/ but no {other}/" + (f"; the other folders are {beside}" if beside else ""),
            where=str(folder),
            hint=f"rename the folder that holds the {other} images to {other}, or put all class folders side by side "
            "for an 80/20 split",
        )
    recipe = "official" if parts else "eighty_twenty"
    if not parts and (folder / "all").is_dir():
        if not holds_class_folders(folder / "all"):
            raise UserError("a class folder cannot be called 'all'", where=str(folder), hint="rename it")
        parts = ["all"]
    roots = [folder / name for name in parts] or [folder]
    names = [[path.name for path in class_folders(root)] for root in roots]
    if not names[0]:
        loose = sum(is_image(path) for path in folder.iterdir() if path.is_file())
        found = f"it holds {loose} images and no class folders" if loose else "it holds no class folders"
        raise UserError(found, where=str(folder), hint="put the images of each class into a folder of its own")
    refuse_untested(names[0], names[-1], folder)
    nested = [path for path in class_folders(roots[0]) if len(class_folders(path)) > 1 and not any(images_in(path))]
    notes = [f"{path.name}/ is not used" for path in class_folders(folder) if parts and path.name not in parts]
    if nested:
        notes.append(
            f"the images of {nested[0].name} lie in {len(class_folders(nested[0]))} sub-folders, and so do those of "
            f"{len(nested) - 1} other class folders; if the sub-folders are the classes, put them side by side"
        )
    files = [path for root in roots for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]
    if others := sum(not is_image(path) for path in files):
        notes.append(f"{pluralize(others, 'file')} without an image suffix {'is' if others == 1 else 'are'} not used")
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
