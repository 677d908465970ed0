"""The user's folder of photographs as a dataset: checked once, and linked into the working folder.

In the working folder, ``data/NAME/train`` and ``data/NAME/test`` hold links to the user's images, and ``catalog.yaml``
holds the entry of the dataset. A dataset of the catalog always has a test part. If the user gives none, the test part
holds one training image of each class. No model is ever scored on these images.
"""

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from bolt.image_folders import class_folders, images_below, images_in, unused_in
from orchestrator.adapt.request import Request
from orchestrator.catalog import DatasetEntry, excluded_file, excluded_images, load_catalog
from orchestrator.core.events import OnProgress
from orchestrator.core.settings import RunSettings
from orchestrator.datasets.adding import check_images, state_shared_images, write_entry
from orchestrator.datasets.copies import linked
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import RawDataset
from orchestrator.datasets.series import SERIES, SHOWN, series_of
from orchestrator.util.atomic_files import replace_text
from orchestrator.util.errors import UserError
from orchestrator.util.identity import fingerprint
from orchestrator.util.units import listed

FOLDS = 4
_STAMP = "checked.json"
_VERSION = 2
"""Version of what a working folder holds. Images that an earlier version has checked are checked again."""


@dataclass(frozen=True)
class OwnImages:
    """The user's images as a dataset of a catalog.

    Attributes:
        entry: the catalog entry.
        settings: the user's settings with two changes. The catalog file of the working folder follows the user's own
            catalog files. The data root is a folder of links to the user's images and to all that the user's data root
            holds.
        copies: groups of training images that show one picture, as positions in the training split, ascending.
        notes: remarks about the images, from the check that this or an earlier run made.
        given_parts: the name of each part that the user gives, and its path in the user's folder; see
            :func:`as_given`.
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

    @cached_property
    def pictures(self) -> list[int]:
        """The number of different pictures among the training images of each class."""
        return self._count(self.copies)

    @cached_property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Groups of training images that are in one fold: the copies of a picture, and series.

        In a class with a single series, the images of this series are not kept together.
        """
        kept = self._joined([of for of in self._series if self.raw.train.labels[of[0]] not in self._lone])
        return kept if min(self._count(kept)) > 1 else self.copies

    @cached_property
    def _lone(self) -> list[int]:
        """The classes whose images would be a single group if all series were kept together."""
        return [label for label, count in enumerate(self._count(self._joined(self._series))) if count < 2]

    def _joined(self, series: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        groups = [*self.copies, *series]
        return tuple(map(tuple, linked([(of[0], other) for of in groups for other in of[1:]], self.total)))

    @cached_property
    def _series(self) -> list[list[int]]:
        places = [PurePath(self.raw.train.origin(position)).parts for position in range(self.total)]
        return [*map(list, series_of([(place[1], PurePath(*place[2:])) for place in places]).values())]

    @property
    def series_notes(self) -> list[str]:
        """A note on series among the training images, if there are any and images can be held out."""
        if not self._series or not self.folds:
            return []
        names = listed([repr(self.raw.class_names[label]) for label in self._lone], SHOWN)
        divided = f"; a class with a single series has it in several folds: expect less accuracy on new ones of {names}"
        return [f"{SERIES} are held out together{divided if names else ''}"]

    @property
    def group_counts(self) -> list[int]:
        """The number of groups of each class. An image that belongs to no other is a group, too."""
        return self._count(self.groups)

    @property
    def series_of_each(self) -> NDArray[np.int64]:
        """For each training image, the position of the first image of its class that belongs together with it."""
        return self._first_of_each(self.groups)

    @property
    def repeated(self) -> list[int]:
        """Positions of the training images that are copies of an earlier one of their class."""
        return np.flatnonzero(self._first_of_each(self.copies) != np.arange(self.total)).tolist()

    def _first_of_each(self, groups: Iterable[Sequence[int]]) -> NDArray[np.int64]:
        """Return, for each training image, the position of the first image of its class in its group."""
        first_N, labels_N = np.arange(self.total), self.raw.train.labels
        for group in map(list, groups):
            first_N[group] = [next(other for other in group if labels_N[other] == labels_N[n]) for n in group]
        return first_N

    def _count(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Return the number of groups of each class."""
        return [*map(int, np.bincount(self.raw.train.labels[np.unique(self._first_of_each(groups))]))]

    @property
    def total(self) -> int:
        """The number of training images."""
        return len(self.raw.train)

    @property
    def folds(self) -> int:
        """The number of folds of the training images; 0 if a class has a single picture."""
        fewest = min(self.group_counts)
        return 0 if fewest < 2 else min(FOLDS, fewest)

    @property
    def chance(self) -> float:
        """Accuracy in per cent of a model that always predicts the class with the most pictures."""
        return 100 * max(self.pictures) / sum(self.pictures)

    def origin(self, position: int) -> str:
        """Return the path of a training image in the user's folder."""
        return as_given(self.raw.train.origin(position), self.given_parts)


def prepare_images(request: Request, advance: OnProgress = lambda done, of: None) -> OwnImages:
    """Link and check the user's images, unless an earlier run has done so and no file has changed since.

    ``advance`` receives the number of decoded images and the total.

    Raises ``UserError`` for a class without images, and for broken images.
    """
    parts = {"test" if name == "test" else "train": path for name, path in request.layout.parts.items()}
    given = {name: f"{path.relative_to(request.folder).as_posix()}/" for name, path in parts.items()}
    root, checked = request.work / "data", request.work / _STAMP
    target, excluded = root / request.dataset, excluded_file(request.dataset, root)
    catalog_file = request.work / "catalog.yaml"
    files = [*map(Path, request.settings.catalog_files), catalog_file]

    classes, stamp = _list_images(request, parts)
    found = json.loads(checked.read_text("utf-8")) if checked.is_file() and catalog_file.is_file() else {}
    links = {target / name / path.name: path for name, folders in classes.items() for path in folders}
    stand_ins = {}
    for folder, paths in classes["train"].items() if "test" not in parts else ():
        if not paths:
            what = f"the class folder {folder.name!r} holds no images"
            raise UserError(what, where=str(parts["train"]), hint="\n  ".join(unused_in(folder)))
        stand_ins[folder] = target / "test" / folder.name / f"stand-in{paths[0].suffix}"
        links[stand_ins[folder]] = paths[0]
    if request.settings.data_folder is not None:  # all but its list of excluded images, which is ``data add``'s
        others = request.settings.data_folder.iterdir()
        links |= {link: path for path in others if (link := root / path.name) != excluded}
    is_checked = found.get("stamp") == stamp
    if not is_checked:
        checked.unlink(missing_ok=True)  # removed first: if this run is killed, the next run repeats the check
        catalog_file.unlink(missing_ok=True)
        excluded.unlink(missing_ok=True)  # an excluded image may have been repaired
        shutil.rmtree(target, ignore_errors=True)
    for link, path in links.items():
        link.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(link):
            link.symlink_to(path)
    if not is_checked:
        route = {"kind": "folder", "folder": request.dataset}
        layout = request.layout._replace(data_root=root, route=route, recipe="official")
        options = replace(request.images, tested="test" in parts)
        try:
            images = check_images(request.dataset, layout, request.words, options, catalog_file, advance)
            images.fields["contents"] = images.contents  # images of equal names and sizes may differ
            known = load_catalog(request.settings.catalog_files)
            shared = state_shared_images(images, root, known) if request.sources else []
            write_entry(images, options.domain, files)
            broken = excluded_images(images.entry, root)
        except UserError as error:
            where, what = (text.replace(str(target), str(request.folder)) for text in (error.where, error.what))
            raise UserError(as_given(what, given), where=where, hint=error.hint) from None
        for folder, link in stand_ins.items():
            inside, paths = f"train/{folder.name}", classes["train"][folder]
            link.unlink()
            link.symlink_to(
                next(path for path in paths if f"{inside}/{path.relative_to(folder).as_posix()}" not in broken)
            )
        notes = [as_given(note, given) for note in (*images.notes, *shared) if "short_classes" not in note]
        learnt = [[each.origin for each in group if each.part == "train"] for group in images.copies]
        found = {"stamp": stamp, "notes": notes, "copies": learnt}
        replace_text(checked, json.dumps(found))

    entry = load_catalog(files).datasets[request.dataset]
    raw = open_dataset(entry, root)
    position_of = {raw.train.origin(position): position for position in range(len(raw.train))}
    copies = tuple(tuple(position_of[origin] for origin in group) for group in found["copies"] if len(group) > 1)
    settings = replace(request.settings, data_root=str(root), catalog_files=tuple(map(str, files)))
    own = OwnImages(entry, settings, copies, tuple(found["notes"]), given, raw)
    return replace(own, notes=(*own.notes, *own.series_notes))


def as_given(text: str, given_parts: Mapping[str, str]) -> str:
    """Return the text with each path in the working folder replaced by the path in the user's folder.

    ``given_parts`` maps ``train`` and ``test`` to their paths in the user's folder, such as ``Training/`` or ``./``.
    """
    for part, path in given_parts.items():
        given = path.removeprefix("./").replace("\\", r"\\")
        text = re.sub(rf"(^ *|\) = ){part}/", rf"\g<1>{given}", text, flags=re.MULTILINE)
    return text


def _list_images(request: Request, parts: Mapping[str, Path]) -> tuple[dict[str, dict[Path, list[Path]]], str]:
    """Return the class folders of each part with their images, and a digest of the files and of the image options.

    The digest is made of the names, sizes and time stamps of the files.
    """
    options, reading = request.images, request.images.reading
    stated: list[object] = [options.templates, options.mirrorable, options.exclude_broken, reading.bands, reading.range]
    stated += [_VERSION, request.words[:2], request.dataset]  # not the notes on words
    if request.sources is not None:  # datasets that share images are looked for, by their records
        records = sorted(request.settings.data_folder.glob("*.checksums.json")) if request.settings.data_folder else []
        stated.append([request.sources, *(path.read_text("utf-8") for path in records)])
    classes, files = {}, []
    for name, part in parts.items():
        classes[name] = {folder: images_below(folder) for folder in class_folders(part)}
        paths = images_in(part)  # images beside the class folders are not used, but a note gives their number
        for folder, images in classes[name].items():
            paths += images or [folder]  # the check refuses a class without images
        found = [(path, path.stat() if path.exists() else path.lstat()) for path in paths]
        listed = [(path.relative_to(part).as_posix(), state.st_size, state.st_mtime_ns) for path, state in found]
        files.append([str(part), listed])
    return classes, fingerprint([files, stated])
