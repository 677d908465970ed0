"""Read class folders of images under the data root."""

from __future__ import annotations

from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import RouteContents, file_part
from orchestrator.util.errors import UserError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm"})


def read_folder(entry: DatasetEntry, folder: Path) -> RouteContents:
    """``train/`` and ``test/`` of class folders, or one ``all/`` (or the folder itself) that a recipe splits.

    Raises ``UserError`` for a class without images, or a class that is in only one of the parts.
    """
    official = entry.splits.recipe == "official"
    roots = {split: folder / split for split in ("train", "test")} if official else {"all": _whole(folder)}
    first = next(iter(roots))
    names = [path.name for path in class_folders(roots[first])]
    label_of = {name: label for label, name in enumerate(names)}
    parts = {}
    for split, root in roots.items():
        files, labels = [], []
        for class_folder in class_folders(root):
            if class_folder.name not in label_of:
                raise UserError(
                    f"class folder {class_folder.name!r} is in {split}/ but not in {first}/", where=str(folder)
                )
            found = sorted(p for p in class_folder.rglob("*") if is_image(p))
            if not found:
                raise UserError("the class folder holds no images", where=str(class_folder))
            files += found
            labels += [label_of[class_folder.name]] * len(found)
        parts[split] = file_part(files, labels, folder)
    return RouteContents(names, parts)


def _whole(folder: Path) -> Path:
    return folder / "all" if (folder / "all").is_dir() else folder


def is_image(path: Path) -> bool:
    """Whether a file is an image by its suffix. Hidden files, which some systems put beside images, are not."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def class_folders(folder: Path) -> list[Path]:
    """The class folders in a folder, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
