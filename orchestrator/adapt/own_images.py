"""The user's folder of photographs as a dataset: checked once, and linked into the working folder.

The working folder has ``data/NAME/train`` and ``data/NAME/test``, links to the user's images, and ``catalog.yaml`` with
the entry of the dataset. A dataset of the catalog always has a test part. For a folder without one, the first training
image of each class stands in for it. Nothing is ever scored on these images.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bolt.clip.image_files import UPRIGHT
from bolt.image_folders import class_folders, images_below
from orchestrator.adapt.request import Request
from orchestrator.catalog import Catalog, DatasetEntry, excluded_file, load_catalog
from orchestrator.catalog.references import file_digest
from orchestrator.core.events import OnProgress
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import add_layout, dataset_key
from orchestrator.datasets.layouts import Layout
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import RawDataset
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
        copies: groups of training images that show one picture, as positions in the training split, ascending.
        notes: what was noticed when the images were checked, now or by an earlier run.
        given_parts: the dataset's parts, and where each one is in the user's folder; see :func:`as_given`.
        raw: the opened dataset.
    """

    entry: DatasetEntry
    settings: RunSettings
    copies: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]
    given_parts: Mapping[str, str]
    raw: RawDataset = field(compare=False, repr=False)

    @property
    def has_test(self) -> bool:
        """Whether the user gave test images."""
        return "test" in self.given_parts

    @property
    def class_names(self) -> tuple[str, ...]:
        """Words for the classes, in label order."""
        return self.raw.class_names

    @property
    def per_class(self) -> list[int]:
        """Training images of each class."""
        return self.raw.class_sizes("train")

    @cached_property
    def pictures(self) -> list[int]:
        """Different pictures among the training images of each class."""
        pictures_C = np.array(self.per_class)
        for group in self.copies:
            labels, counts = np.unique(self.raw.train.labels[list(group)], return_counts=True)
            pictures_C[labels] -= counts - 1
        return [int(count) for count in pictures_C]

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

    @property
    def chance(self) -> float:
        """Accuracy in per cent of naming the class that has the most pictures, whatever the image."""
        return 100 * max(self.pictures) / sum(self.pictures)

    def origin(self, position: int) -> str:
        """Return where a training image is in the user's folder."""
        return as_given(self.raw.train.origin(position), self.given_parts)


def own_key(folder: Path) -> str:
    """Return a name for the user's folder in the catalog and in file names.

    It is ``images`` if the folder's name has no usable letter.
    """
    try:
        return dataset_key(folder)
    except UserError:
        return "images"


def prepare_images(
    request: Request, layout: Layout, catalog: Catalog, advance: OnProgress = lambda done, of: None
) -> OwnImages:
    """Check the user's images, unless an earlier run did and no file has changed since.

    Args:
        layout: how the user's folder is laid out.
        catalog: of the user's catalog files.
        advance: called with the number of decoded images and the total.

    Raises ``UserError`` for a class without images, and for broken images.
    """
    parts = {"test" if name == "test" else "train": path for name, path in layout.parts.items()}
    given = {name: f"{path.relative_to(request.folder).as_posix()}/" for name, path in parts.items()}
    name = f"{request.name}-own" if request.name in catalog.datasets else request.name
    root, catalog_file, checked = request.work / "data", request.work / "catalog.yaml", request.work / _STAMP
    files = [*map(Path, request.settings.catalog_files), catalog_file]
    stamp = _stamp(request, parts)
    found = json.loads(checked.read_text("utf-8")) if checked.is_file() and catalog_file.is_file() else {}
    if found.get("stamp") != stamp:
        checked.unlink(missing_ok=True)  # first, so that a killed check is begun again
        catalog_file.unlink(missing_ok=True)
        excluded_file(name, root).unlink(missing_ok=True)  # an image that was broken may be repaired
        shutil.rmtree(root / name, ignore_errors=True)
        _link_images(root / name, parts)
        linked = layout._replace(data_root=root, route={"kind": "folder", "folder": name}, recipe="official")
        try:
            added = add_layout(name, linked, files, replace(request.images, tested="test" in parts), advance)
        except UserError as error:
            where, what = (text.replace(str(root / name), str(request.folder)) for text in (error.where, error.what))
            raise UserError(as_given(what, given), where=where, hint=error.hint) from None
        notes = [as_given(note, given) for note in added.notes if "short_classes" not in note]
        learnt = [[each.origin for each in group if each.part == "train"] for group in added.copies]
        found = {"stamp": stamp, "notes": notes, "copies": learnt}
        with replacing(checked) as temporary:
            temporary.write_text(json.dumps(found), encoding="utf-8")
    if request.settings.data_folder is not None:
        _link({root / path.name: path for path in request.settings.data_folder.iterdir()})
    entry = load_catalog(files).datasets[name]
    raw = open_dataset(entry, root)
    position_of = {raw.train.origin(position): position for position in range(len(raw.train))}
    copies = tuple(tuple(position_of[origin] for origin in group) for group in found["copies"] if len(group) > 1)
    settings = replace(request.settings, data_root=str(root), catalog_files=tuple(map(str, files)))
    return OwnImages(entry, settings, copies, tuple(found["notes"]), given, raw)


def as_given(text: str, given_parts: Mapping[str, str]) -> str:
    """Return a text about the images with their paths in the user's folder, which may have no ``train/``.

    ``given_parts``: ``train`` and ``test``, and the path of each in the user's folder, as ``Training/``.
    """
    for part, path in given_parts.items():
        given = path.removeprefix("./").replace("\\", r"\\")
        text = re.sub(rf"(^ *|\) = ){part}/", rf"\g<1>{given}", text, flags=re.MULTILINE)
    return text


def _stamp(request: Request, parts: Mapping[str, Path]) -> str:
    """Return a digest of the user's files, by name, size and time stamp, and of what the user says about them."""
    options, files = request.images, []
    for part in parts.values():
        found = [(path, path.stat() if path.exists() else path.lstat()) for path in images_below(part)]
        listed = [(path.relative_to(part).as_posix(), state.st_size, state.st_mtime_ns) for path, state in found]
        files.append([str(part), listed])
    said = [options.templates, options.mirrorable, options.exclude_broken]
    if options.reading != UPRIGHT:
        said.append([options.reading.bands, options.reading.range])
    if options.words is not None:  # without the option, earlier checks stay valid
        said.append(file_digest(options.words) if options.words.is_file() else "")
    return fingerprint([files, said])


def _link_images(target: Path, parts: Mapping[str, Path]) -> None:
    """Make ``target/train`` and ``target/test``: links to the user's class folders, or to an image of each class."""
    links = {target / name / path.name: path for name, part in parts.items() for path in class_folders(part)}
    for folder in class_folders(parts["train"]) if "test" not in parts else []:
        paths = images_below(folder)
        if not paths:
            raise UserError(f"the class folder {folder.name!r} holds no images", where=str(parts["train"]))
        standing_in = next((path for path in paths if os.access(path, os.R_OK)), paths[0])
        links[target / "test" / folder.name / standing_in.name] = standing_in
    _link(links)


def _link(links: Mapping[Path, Path]) -> None:
    """Make links, by what they lead to, unless they are there."""
    for link, path in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(path)
