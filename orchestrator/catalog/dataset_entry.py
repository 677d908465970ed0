"""The fields of domains and datasets in a catalog file, the paths of a dataset's files, and what is missing of them."""

from __future__ import annotations

import importlib
import os
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, field_validator, model_validator

from bolt.class_words import check_distinct
from bolt.clip.image_files import Reading
from orchestrator.catalog.routes import OwnRoute, Route
from orchestrator.catalog.validation import OPEN_CLIP, Key, PositiveInt, StrictModel, Title, check_templates
from orchestrator.catalog.yaml_files import read_text
from orchestrator.util.errors import UserError

DASSL_PAGE = "https://github.com/KaiyangZhou/CoOp/blob/main/DATASETS.md"
"""The page that describes the folders of the few-shot benchmark, with links to the images and the split files."""


class Sizes(StrictModel):
    """Expected number of images in each split."""

    train: Annotated[StrictInt, Field(ge=0)]
    test: PositiveInt


class Splits(StrictModel):
    """The recipe that divides the images into splits."""

    recipe: Literal["official", "eighty_twenty", "eighty_ten_ten", "published"]


class DomainEntry(StrictModel):
    """A family of datasets. By default, the sources for a dataset are the other datasets of its domain.

    Attributes:
        name: the key of the entry.
        title: the name printed in tables.
    """

    name: Key
    title: Title


class DatasetEntry(StrictModel):
    """One dataset.

    Attributes:
        name: the key of the entry, in lower case.
        title: the name printed in tables.
        domain: key of the dataset's domain.
        route: where the images come from.
        class_names: the words for each class in prompts. A list is in label order, a mapping goes from the class names
            in the data to words, and ``open_clip.NAME`` is a list of open_clip. The default is the names in the data.
        prompts: a list of templates with ``{}`` for the words of a class; or the name of such a list, which is a set in
            ``grids/prompts.yaml`` or ``open_clip.NAME``; or a mapping from the words of each class to its sentences,
            which may contain ``{}``.
        renamed: name of a class in the data -> a better name, for some classes; not together with ``class_names``.
        classes: number of classes that a classifier chooses from.
        mirrorable: whether a mirrored image keeps its class. A mirrored letter or arrow has another class. If this is
            false, views of a support are not mirrored, unless the protocol's switch ``flips`` is ``always``.
        exif_rotation: whether images are rotated by their EXIF orientation. Off for benchmarks, because their published
            numbers were measured without rotation. Images of the user's own folders and tables are always rotated.
        bands: numbers of the red, green and blue bands in the files, or of the grey band, counted from 1; by default
            the first bands.
        range: the values that become black and white, for measured data; by default the range of the number format.
        image_side: typical side of the images in pixels. It is used to estimate their bytes, and to decide whether
            large images of a support are stored in a smaller size.
        contents: a digest of the images, which is a part of the dataset's identity. ``data add`` states it for tables
            of several tar files and for images that were replaced, and ``adapt`` for all, because names and sizes do
            not show every change, and the files are too large to be read for every plan.
        sizes: expected number of images in each split; ``train: 0`` for a dataset that has test images only.
        smallest_class: number of training images of the smallest class, if known.
        splits: the recipe that divides the images; by default the official splits.
        also_called: other names that published checkpoints have for the dataset.
        images_of: keys of datasets, or one key, that have images of this one. Neither is then a source of the other.
        kin: name of a group of datasets that share images; ``leave_group_out`` leaves the whole group out.
        licence: the terms of the images.
        gated: what the user must do before the images can be fetched (an account, an agreement), if anything.
        download_bytes: size of the download, exact or rounded.
        source: address of a page about the images, if the route has no address.
        note: points that are unconfirmed, or on which sources disagree.
        published_as: the dataset's name in the paper's result tables.
        published_classes: the number of classes that the paper states, if it is not ``classes``.
        fine_tune_epochs: epochs of the source model's fine-tuning; by default as many as make about 2,000 steps.
    """

    name: Key
    title: Title
    domain: Key
    route: Route
    class_names: tuple[str, ...] | dict[str, str] | str | None = None
    renamed: dict[str, str] = Field(default={})
    prompts: tuple[str, ...] | dict[str, tuple[str, ...]] | str
    classes: Annotated[StrictInt, Field(ge=2)]
    mirrorable: StrictBool = True
    exif_rotation: StrictBool = False
    bands: tuple[PositiveInt, ...] | None = None
    range: tuple[float, float] | None = None
    image_side: PositiveInt | None = None
    contents: str = ""
    sizes: Sizes
    smallest_class: PositiveInt | None = None
    splits: Splits = Splits(recipe="official")
    images_of: Annotated[tuple[Key, ...], BeforeValidator(lambda v: (v,) if isinstance(v, str) else v)] = ()
    also_called: tuple[str, ...] = ()
    kin: str | None = None
    licence: str
    gated: str = ""
    download_bytes: PositiveInt | None = None
    source: str | None = None
    note: str = ""
    published_as: str | None = None
    published_classes: PositiveInt | None = None
    fine_tune_epochs: PositiveInt | None = None

    @field_validator("class_names", mode="before")
    @classmethod
    def _check_class_names(cls, value: Any) -> Any:
        names = [*value.keys(), *value.values()] if isinstance(value, Mapping) else value
        if isinstance(names, list | tuple):
            for name in names:
                if not isinstance(name, str) or not name.strip():
                    raise ValueError(f"the class name {name!r} is not text; write it in quotes")
        elif names is not None and not str(names).startswith(OPEN_CLIP):
            known = f"a list of names, nor a mapping from folder name to words, nor {OPEN_CLIP}NAME"
            raise ValueError(f"{value!r} is neither {known}")
        return value

    @field_validator("prompts", mode="before")
    @classmethod
    def _check_prompts(cls, value: Any) -> Any:
        if isinstance(value, Mapping):
            for word, sentences in value.items():
                check_templates(sentences, of_class=word)
            return value
        return value if isinstance(value, str) else check_templates(value)

    @model_validator(mode="after")
    def _consistent(self) -> DatasetEntry:
        if isinstance(self.class_names, tuple | dict):
            if len(self.class_names) != self.classes:
                raise ValueError(f"class_names has {len(self.class_names)} names, classes says {self.classes}")
            names = list(self.class_names.values() if isinstance(self.class_names, dict) else self.class_names)
            check_distinct(names, list(self.class_names))
            if isinstance(self.prompts, dict) and (other := sorted({*names} ^ {*self.prompts})):
                raise ValueError(f"prompts and class_names need the same words; {other[0]!r} is in one of them only")
        if self.renamed and self.class_names is not None:
            raise ValueError("'renamed' replaces some class names, and 'class_names' replaces all; give one of the two")
        if self.smallest_class is not None and self.smallest_class * self.classes > self.sizes.train:
            raise ValueError(f"smallest_class {self.smallest_class} x {self.classes} classes exceeds sizes.train")
        _ = self.reading
        return self

    @property
    def reading(self) -> Reading:
        """How the pixels of the images are read. Raises ``ValueError`` for invalid bands and for an invalid range."""
        return Reading(self.exif_rotation or self.is_own, self.bands, self.range)

    @property
    def access(self) -> Literal["open", "gated", "manual"]:
        """How the images are obtained: ``open``, by a program; ``gated``, by a program after a step of the user (an
        account, an agreement); ``manual``, by hand."""
        if self.route.kind in ("manual", "dassl"):
            return "manual"
        return "gated" if self.gated else "open"

    @property
    def is_bundled(self) -> bool:
        """Whether the images need no files: they are drawn by the project, or come with scikit-learn."""
        return self.route.kind in ("toy", "sklearn")

    def shares_images(self, other: DatasetEntry) -> bool:
        """Return whether both are one dataset, or the catalog says that they share images."""
        return not {self.name, *self.images_of}.isdisjoint((other.name, *other.images_of))

    @property
    def is_own(self) -> bool:
        """Whether the images are a folder or a table of the user, under the data root."""
        return isinstance(self.route, OwnRoute)

    @property
    def is_prepared(self) -> bool:
        """Whether ``data prepare`` makes the dataset's folder, or says what to put into it by hand."""
        return not (self.is_bundled or self.is_own or self.route.kind == "dassl")

    @property
    def has_training_images(self) -> bool:
        """Whether the dataset has a training split, so that it can be a target or a source."""
        return self.sizes.train > 0

    @property
    def max_shots(self) -> int:
        """The number of training images of the smallest class.

        If that number is not known, this is its upper limit: the average number of training images per class.
        """
        return self.smallest_class or self.sizes.train // self.classes


def prompt_templates(entry: DatasetEntry) -> tuple[str, ...] | dict[str, tuple[str, ...]]:
    """Return the prompt templates of a dataset, or a mapping from the words of each class to its sentences.

    In a template, ``{}`` stands for the words of a class.
    """
    return _open_clip_list(entry.prompts) if isinstance(entry.prompts, str) else entry.prompts


def class_names_of(entry: DatasetEntry) -> tuple[str, ...] | dict[str, str] | None:
    """Return the words for a dataset's classes, in label order, or a mapping from the class names in the data to words.

    ``None`` means that the names in the data are used.
    """
    return _open_clip_list(entry.class_names) if isinstance(entry.class_names, str) else entry.class_names


@cache
def _open_clip_list(name: str) -> tuple[str, ...]:
    attribute = name.removeprefix(OPEN_CLIP)
    if (found := getattr(importlib.import_module("open_clip"), attribute, None)) is None:
        raise UserError(f"open_clip has no list {attribute!r}", where=name)
    return tuple(item if isinstance(item, str) else item("{}") for item in found)


def dataset_folder(entry: DatasetEntry, data_root: Path | None) -> Path:
    """Return the folder with a dataset's files: the folder that the route names, or else ``data_root/<name>``."""
    return entry.route.place(data_root or Path(), entry.name)


def partial_folder(entry: DatasetEntry, data_root: Path) -> Path:
    """Return the folder in which a dataset is prepared. It serves as the data root until the dataset is complete."""
    return data_root / f"{entry.name}.partial"


def missing_data(entry: DatasetEntry, data_root: Path | None) -> UserError | None:
    """Return ``None`` if a dataset's images are on this machine, otherwise an error that says how to get them.

    Drawn datasets and datasets of scikit-learn need no files. The route of any other dataset says what is missing.
    """
    if entry.is_bundled:
        return None
    folder, how_to_get = dataset_folder(entry, data_root), _how_to_get(entry, data_root)
    if data_root is None:
        hint = f"pass --data-root PATH or set BOLT_DATA; the images are then read from PATH/{folder}"
        hint += f"\n  {how_to_get}" * entry.is_prepared
        return UserError(f"dataset {entry.name} is read from a folder, and no data root is given", hint=hint)
    if not (absent := entry.route.missing(folder, entry.splits.recipe)):
        return None
    begun = entry.is_prepared and partial_folder(entry, data_root).is_dir()
    state = "only partly there" if begun else f"not there: {absent}"
    return UserError(f"dataset {entry.name} is {state}", hint=how_to_get)


def _how_to_get(entry: DatasetEntry, data_root: Path | None) -> str:
    """Return lines that say how to get a dataset's images, with their origin and licence; empty for a table."""
    route, root = entry.route, shlex.quote(str(data_root)) if data_root else "PATH"
    if route.kind == "manifest":
        return ""
    if route.kind == "folder":
        origin = f"; the images come from {entry.source} ({entry.licence})" if entry.source else ""
        return f"point --data-root (or BOLT_DATA) to the folder that holds {route.folder}/{origin}"
    if route.kind == "dassl":
        how = f"CoOp's DATASETS.md says how to get the images: {entry.source or DASSL_PAGE}"
    elif route.kind == "manual":
        how = f"no program can fetch the images; by hand, into {root}/{entry.name}: {route.instructions}"
    else:
        how = f"python -m orchestrator data prepare {entry.name} --data-root {root}"
        how += f"\n  before that: {entry.gated}" if entry.gated else ""
    origin = f"from {route.origin}" if route.origin else ""
    return "\n  ".join(filter(None, (how, origin, f"licence: {entry.licence}")))


def excluded_file(name: str, data_root: Path) -> Path:
    """Return the path of the list of a dataset's excluded images. A line is ``origin TAB reason``."""
    return data_root / f"{name}.excluded.txt"


def excluded_images(entry: DatasetEntry, data_root: Path | None) -> dict[str, str]:
    """Return the excluded images of a dataset, as origin -> reason. Raises ``UserError`` for an unreadable list."""
    if data_root is None or entry.is_bundled or not os.path.exists(path := excluded_file(entry.name, data_root)):
        return {}
    text = read_text(path, "the list of excluded images")
    lines = (line.partition("\t") for line in text.splitlines() if line.strip())
    return {origin: reason for origin, _, reason in lines}
