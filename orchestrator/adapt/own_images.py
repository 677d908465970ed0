"""The user's folder of photographs as a dataset: checked once, and linked into the working folder.

The working folder has ``data/NAME/train`` and ``data/NAME/test``, links to the user's images, and ``catalog.yaml`` with
the entry of the dataset. A dataset of the catalog always has a test part. For a folder without one, one readable
training image of each class stands in for it; nothing is ever scored on it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bolt.clip.image_files import UNREADABLE, UPRIGHT, Reading, open_image
from bolt.image_folders import (
    class_folders,
    dataset_folder,
    holds_class_folders,
    how_to_lay_out,
    images_below,
    part_folders,
    unused_notes,
)
from orchestrator.adapt.request import Request
from orchestrator.catalog import DatasetEntry, excluded_file, load_catalog
from orchestrator.catalog.references import file_digest
from orchestrator.core.events import OnProgress
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import add_dataset, dataset_key
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import RawDataset
from orchestrator.datasets.routes.class_folders import refuse_folder_of_datasets
from orchestrator.util.atomic_files import replacing
from orchestrator.util.errors import UserError
from orchestrator.util.identity import fingerprint

FOLDS = 4
_STAMP = "checked.json"


@dataclass(frozen=True)
class OwnImages:
    """The user's images as a dataset of a catalog.

    Attributes:
        entry: the catalog entry.
        settings: the user's settings. The catalog file of the working folder is added as the last one. The data root
            holds links to the user's images and to the images of the sources.
        has_test: whether the user gave test images.
        per_class, pictures: training images and different pictures of each class, in label order.
        copies: groups of training images that show one picture, as positions in the training split, ascending.
        notes: what was noticed when the images were checked, now or by an earlier run.
        raw: the opened dataset.
    """

    entry: DatasetEntry
    settings: RunSettings
    has_test: bool
    class_names: tuple[str, ...]
    per_class: tuple[int, ...]
    pictures: tuple[int, ...]
    copies: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]
    raw: RawDataset = field(compare=False, repr=False)

    @property
    def repeated(self) -> list[int]:
        """Training images that are copies of an earlier one."""
        return [position for group in self.copies for position in group[1:]]

    @property
    def total(self) -> int:
        """The number of training images."""
        return sum(self.per_class)

    @property
    def folds(self) -> int:
        """How many folds the training images are divided into; 0 if a class has a single picture."""
        fewest = min(self.pictures)
        return 0 if fewest < 2 else min(FOLDS, fewest)


def prepare_images(
    request: Request, train: Path, test: Path | None, advance: OnProgress = lambda done, of: None
) -> OwnImages:
    """Check the user's images, unless an earlier run did and no file has changed since.

    Args:
        train, test: what :func:`image_parts` returned.
        advance: called with the number of decoded images and the total.

    Raises ``UserError`` for a folder without class folders, a class without images, and broken images.
    """
    folder, settings, options = request.folder, request.settings, request.images
    said = [options.templates, options.mirrorable, options.exclude_broken]
    if options.reading != UPRIGHT:
        said.append([options.reading.bands, options.reading.range])
    if options.words is not None:  # without the option, earlier checks stay valid
        said.append(file_digest(options.words) if options.words.is_file() else "")
    stamp = fingerprint([[[str(part), _listing(part)] for part in (train, test) if part], said])
    root, catalog_file, checked = request.work / "data", request.work / "catalog.yaml", request.work / _STAMP
    taken = request.name in load_catalog(settings.catalog_files).datasets
    name = f"{request.name}-own" if taken else request.name
    files = [*map(Path, settings.catalog_files), catalog_file]
    found = json.loads(checked.read_text("utf-8")) if checked.is_file() and catalog_file.is_file() else {}
    if found.get("stamp") != stamp:
        checked.unlink(missing_ok=True)  # first, so that a killed check is begun again
        catalog_file.unlink(missing_ok=True)
        excluded_file(name, root).unlink(missing_ok=True)  # an image that was broken may be repaired
        _link_parts(root / name, train, test, options.reading)
        try:
            added = add_dataset(root / name, files, replace(options, name=name, tested=test is not None), advance)
        except UserError as error:
            where = error.where.replace(str(root / name), str(folder))
            what = error.what.replace(str(root / name), str(folder))
            raise UserError(as_given(what, folder, train, test), where=where, hint=error.hint) from None
        unused = unused_notes(folder.expanduser().absolute(), [train, *([test] if test else [])])
        notes = (as_given(note, folder, train, test) for note in added.notes if "short_classes" not in note)
        learnt = [[each.origin for each in group if each.part == "train"] for group in added.copies]
        found = {"stamp": stamp, "notes": list(dict.fromkeys([*unused, *notes])), "copies": learnt}
        with replacing(checked) as temporary:
            temporary.write_text(json.dumps(found), encoding="utf-8")
    if settings.data_folder is not None:
        for path in settings.data_folder.iterdir():
            _link(path, root / path.name)
    entry = load_catalog(files).datasets[name]
    raw = open_dataset(entry, root)
    position_of = {raw.train.origin(position): position for position in range(len(raw.train))}
    copies = [tuple(position_of[origin] for origin in group) for group in found["copies"] if len(group) > 1]
    pictures = np.array(raw.class_sizes("train"))
    for group in copies:
        labels, counts = np.unique(raw.train.labels[list(group)], return_counts=True)
        pictures[labels] -= counts - 1
    return OwnImages(
        entry=entry,
        settings=replace(settings, data_root=str(root), catalog_files=tuple(map(str, files))),
        has_test=test is not None,
        class_names=raw.class_names,
        per_class=tuple(raw.class_sizes("train")),
        pictures=tuple(pictures.tolist()),
        copies=tuple(copies),
        notes=tuple(found["notes"]),
        raw=raw,
    )


def as_given(text: str, folder: Path, train: Path, test: Path | None) -> str:
    """Return a text about the images with their paths in the user's folder, which may have no ``train/``."""
    for part, path in (("train", train), *([("test", test)] if test else [])):
        listed_in = path.relative_to(folder.expanduser().absolute()).as_posix()  # Training/, all/ or the folder
        given = f"{listed_in}/".removeprefix("./").replace("\\", r"\\")
        text = re.sub(rf"(^ *|\) = ){part}/", rf"\g<1>{given}", text, flags=re.MULTILINE)
    return text


def own_key(folder: Path) -> str:
    """Return a name for the user's folder in the catalog and in file names.

    It is ``images`` if the folder's name has no usable letter.
    """
    try:
        return dataset_key(folder)
    except UserError:
        return "images"


def image_parts(folder: Path) -> tuple[Path, Path | None]:
    """Return the folder that holds the training images' class folders, and that of the test images if there is one.

    Raises ``UserError`` for a folder without class folders, and for a folder of datasets.
    """
    folder = folder.expanduser().absolute()
    hint = "give a folder with one folder of images per class"
    if not folder.is_dir() or folder == Path(folder.anchor):
        what = f"{folder} is no folder of images" if folder.exists() else f"there is no folder {folder}"
        raise UserError(what, hint=hint)
    folder = dataset_folder(folder)
    refuse_folder_of_datasets(folder, "adapt")
    parts = part_folders(folder)
    if "test" in parts and "train" not in parts:
        raise UserError(
            f"there is {parts['test'].name}/ but no train/",
            where=str(folder),
            hint="put the images to learn from in train/",
        )
    train = parts.get("train") or parts.get("all") or folder
    if not holds_class_folders(train):
        raise UserError("it holds no class folders", where=str(folder), hint=how_to_lay_out(folder))
    return train, parts.get("test") if "train" in parts else None


def _listing(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size and time stamp of every image."""
    found = [(path, path.stat() if path.exists() else path.lstat()) for path in images_below(folder)]
    return [(path.relative_to(folder).as_posix(), state.st_size, state.st_mtime_ns) for path, state in found]


def _link_parts(target: Path, train: Path, test: Path | None, reading: Reading) -> None:
    """``target/train`` and ``target/test``: links to the user's folders, or one training image of each class."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for child in class_folders(train):
        _link(child, target / "train" / child.name)
        if test is None:
            paths = images_below(child)
            if not paths:
                raise UserError(f"the class folder {child.name!r} holds no images", where=str(train))
            standing_in = next((path for path in paths if _is_readable(path, reading)), paths[0])
            _link(standing_in, target / "test" / child.name / standing_in.name)
    if test is not None:
        for child in class_folders(test):
            _link(child, target / "test" / child.name)


def _is_readable(path: Path, reading: Reading) -> bool:
    try:
        open_image(path, reading)
    except UNREADABLE:
        return False
    return True


def _link(path: Path, link: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(link):
        link.symlink_to(path)
