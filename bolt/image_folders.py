"""Images in folders as people have them: what is an image, a class and a part, and what is not used.

One reader serves ``bolt.read_folder``, ``adapt``, ``data add`` and the catalog's own folders.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from PIL import Image

PARTS = {
    "train": ("train", "training"),
    "test": ("test", "testing"),
    "val": ("val", "valid", "validation", "dev"),
}
"""Part -> the usual names of its folder, in any case."""

_NOT_PICTURES = frozenset({"BUFR", "EPS", "FITS", "GRIB", "HDF5", "MPEG", "PDF", "WMF"})
"""Formats that Pillow recognises but decodes only with other programs, if at all."""

_SYSTEM_FOLDERS = frozenset({
    "__MACOSX", "__pycache__", "@eaDir", "#recycle", "$RECYCLE.BIN", "System Volume Information", "lost+found",
})  # fmt: skip

_UNREAD = frozenset({
    ".avif", ".heic", ".heif", ".jxl", ".svg", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
})  # fmt: skip
"""Suffixes of pictures that this Pillow may not read; one that it reads is an image like any other."""


@cache
def image_suffixes() -> frozenset[str]:
    """Return the suffixes, in lower case, of every picture format that the installed Pillow reads."""
    Image.init()
    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, kind in known if kind in Image.OPEN and kind not in _NOT_PICTURES)


def is_image(path: Path) -> bool:
    """Whether a file is an image by its suffix. Hidden files, which some systems put next to images, are not."""
    return path.suffix.lower() in image_suffixes() and not path.name.startswith(".")


def is_system(name: str) -> bool:
    """Whether a folder of this name is hidden, or belongs to a system or a program."""
    return name.startswith(".") or name in _SYSTEM_FOLDERS


def class_folders(folder: Path) -> list[Path]:
    """List the folders in a folder by name, without hidden and system ones and links to a folder that it is in."""
    found = (path for path in folder.iterdir() if path.is_dir() and not is_system(path.name))
    return sorted(path for path in found if not (path.is_symlink() and folder.resolve().is_relative_to(path.resolve())))


def images_in(folder: Path) -> list[Path]:
    """List the images in a folder itself."""
    return sorted(path for path in folder.iterdir() if path.is_file() and is_image(path))


def images_below(folder: Path) -> list[Path]:
    """List the images in a folder and its sub-folders, without hidden and system ones, in order."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_system(name)]
        paths = (Path(place, name) for name in files)  # a broken link stays, so that opening it says what is wrong
        found += [path for path in paths if is_image(path) and (path.is_file() or path.is_symlink())]
    return sorted(found)


def holds_class_folders(path: Path) -> bool:
    """Whether a folder can be a part: it has folders and no images of its own."""
    return path.is_dir() and bool(class_folders(path)) and not images_in(path)


def part_folders(folder: Path) -> dict[str, Path]:
    """Map ``train``, ``test``, ``val`` and ``all`` to the folders that hold these parts, whatever their spelling."""
    parts: dict[str, Path] = {}
    for child in class_folders(folder):
        name = "all" if child.name == "all" else part_of(child.name)
        if name is not None and holds_class_folders(child):
            parts.setdefault(name, child)
    return parts


def part_of(name: str) -> str | None:
    """Return the part that a folder's name means, such as ``train`` for ``Training``; ``None`` for any other name."""
    return next((part for part, names in PARTS.items() if name.casefold() in names), None)


def dataset_folder(folder: Path) -> Path:
    """Return the folder that holds the parts: this one, or the only folder in it, or the only one in that."""
    inner = class_folders(folder)
    if len(inner) == 1 and not images_in(folder) and part_of(inner[0].name) is None and part_folders(inner[0]):
        return inner[0]
    return folder


def unused_notes(folder: Path, used: Iterable[Path]) -> list[str]:
    """Say what in a folder is not used, by kind and count; ``used``: the folders that hold its class folders."""
    roots = [path.resolve() for path in used]
    notes = [
        f"{path.name}/ is not used: {_count(len(images_below(path)), 'image')}"
        for path in class_folders(folder)
        if folder.resolve() not in roots and path.resolve() not in roots
    ]
    hidden, unread, others = 0, Counter[str](), 0
    for top in (path for root in roots for path in root.iterdir() if path.is_dir() and not is_system(path.name)):
        for place, _, files in os.walk(top):
            inside = any(map(is_system, Path(place).relative_to(top).parts))
            for path in (Path(place, name) for name in files):
                if path.name.startswith(".") or (is_image(path) and not inside):
                    continue
                hidden += inside and is_image(path)
                unread[path.suffix.lower()] += not inside and path.suffix.lower() in _UNREAD
                others += not inside and path.suffix.lower() not in _UNREAD
    if hidden:
        notes.append(f"{_count(hidden, 'image')} in hidden or system folders: not used")
    for suffix, count in sorted((+unread).items()):
        notes.append(f"{_count(count, f'{suffix} file')}: not used, because Pillow does not read them; convert to JPEG")
    if others:
        notes.append(f"{_count(others, 'file')} without an image suffix: not used")
    return notes


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)
