"""Read images in class folders: under the data root, in unpacked archives and in repositories.

Archives and repositories have their class folders at any depth. ``blanchon/AID`` has ``data/<class>/``, MLRSNet has
``Images/<class>/``, and RSI-CB128 has ``<super-class>/<class>/``. Therefore a folder is a class if it holds images
itself. All class folders of a dataset must be equally deep.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path

from bolt import image_folders
from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.class_words import letters_of
from orchestrator.datasets.part import Contents, Part, file_part
from orchestrator.util.errors import UserError

MATCHED = "imagenetv2-matched-frequency-format-val"
"""Folder of the variant of ImageNetV2 that the paper's code and the field's benchmark use."""

ImagesOfClass = Mapping[str, list[Path]]
"""Name of each class folder -> its images. Names and images are sorted."""


def read_folder(entry: DatasetEntry, folder: Path) -> Contents:
    """Read class folders that are side by side.

    Under the split recipe ``official`` they are in ``train/`` and in ``test/``. Under any other recipe they are in
    ``all/`` or, if there is no such folder, in ``folder`` itself.

    Raises ``UserError`` for a class without images, and for a class that is in ``test/`` only.
    """

    def find(root: Path) -> ImagesOfClass:
        return {path.name: image_folders.images_below(path) for path in image_folders.class_folders(root)}

    if entry.splits.recipe != "official":
        return _contents({"all": find(folder / "all" if (folder / "all").is_dir() else folder)}, folder)
    parts = image_folders.part_folders(folder)
    return _contents({split: find(parts.get(split, folder / split)) for split in ("train", "test")}, folder)


def read_class_folders(entry: DatasetEntry, folder: Path) -> Contents:
    """Read class folders at any depth.

    Under the split recipe ``official``, the folders ``train/`` and ``test/`` are the parts. Under any other recipe, all
    images are one part.

    Raises ``UserError`` when the class folders are ambiguous, and when the two parts have different classes.
    """
    if entry.splits.recipe != "official":
        return _contents({"all": find_class_folders(folder)}, folder)
    found = {split: find_class_folders(folder / split) for split in ("train", "test")}
    refuse_untested(found["train"], found["test"], folder)
    return _contents(found, folder)


def refuse_untested(train: Iterable[str], test: Iterable[str], folder: Path) -> None:
    """Raise ``UserError`` if a class of the training part is not in the test part."""
    if lacking := sorted(set(train) - set(test)):
        hint = "every class needs images to learn from and images to be tested on"
        if alike := [name for name in sorted(set(test) - set(train)) if letters_of(name) == letters_of(lacking[0])]:
            hint = f"test/ has {alike[0]!a}, and train/ has {lacking[0]!a}; rename one of them"
        raise UserError(f"class folder {lacking[0]!r} is in train/ but not in test/", where=str(folder), hint=hint)


def _contents(found: Mapping[str, ImagesOfClass], folder: Path) -> Contents:
    """Return the class names and the parts. The first part in ``found`` gives the class names.

    The label of an image is the position of its class in the list of class names.

    Raises ``UserError`` for a class that the first part does not have, and for a class without images.
    """
    first = next(iter(found))
    label_of = {name: label for label, name in enumerate(found[first])}
    for split, classes in found.items():
        if unexpected := sorted(classes.keys() - label_of.keys()):
            raise UserError(f"class folder {unexpected[0]!r} is in {split}/ but not in {first}/", where=str(folder))
        if empty := [name for name, paths in classes.items() if not paths]:
            part = "" if split == "all" else f" in {split}/"
            what = f"class folders without images{part}: {', '.join(empty[:8])}"
            raise UserError(what, where=str(folder), hint="\n  ".join(image_folders.unused_in(folder)))
    parts = {split: _labelled(classes, label_of.__getitem__, folder) for split, classes in found.items()}
    return list(label_of), parts


def read_wnid_folders(entry: DatasetEntry, folder: Path) -> Contents:
    """Read class folders that are named by the WordNet ids of ImageNet's classes, as one part ``test``."""
    return list(wnids()), {"test": wnid_part(find_class_folders(folder, re.compile(r"n\d{8}")), folder)}


def wnid_part(classes: ImagesOfClass, folder: Path) -> Part:
    """Make a part from class folders that are named by WordNet ids. Labels are 0 to 999.

    ``folder``: the dataset's folder. Raises ``UserError`` for an id that is none of ImageNet's 1,000 classes.
    """
    index = {wnid: label for label, wnid in enumerate(wnids())}
    if unknown := [images[0].parent for name, images in classes.items() if name not in index]:
        raise UserError(f"the folder {unknown[0].name} is none of the 1,000 classes of ImageNet", where=str(unknown[0]))
    return _labelled(classes, index.__getitem__, folder)


@cache
def wnids() -> tuple[str, ...]:
    """Return the WordNet ids of the 1,000 classes of ILSVRC-2012, in the order of the labels.

    The ids are sorted, which is also the order of torchvision's ImageFolder and open_clip's ``IMAGENET_CLASSNAMES``.
    open_clip has only the names of the classes, so the ids come from timm, on which open_clip depends.
    """
    from timm.data import ImageNetInfo

    return tuple(sorted(ImageNetInfo("imagenet-1k").label_names()))


def read_numbered_folders(entry: DatasetEntry, folder: Path) -> Contents:
    """Read the folders ``0``, ``1``, ..., whose names are the labels, as one part ``test``.

    If variants of ImageNetV2 are side by side, the variant with matched frequencies is read. Raises ``UserError`` if
    there are other variants only.
    """
    variants = sorted(path.name for path in folder.glob("imagenetv2-*") if path.is_dir())
    if variants and MATCHED not in variants:
        what = f"the catalog's dataset is {MATCHED}, but the folder has only {', '.join(variants)}"
        raise UserError(what, where=str(folder), hint="add the missing variant; the variants have different images")
    classes = find_class_folders(folder / MATCHED if variants else folder, re.compile(r"\d+"))
    if beyond := [name for name in classes if int(name) >= entry.classes]:
        raise UserError(f"the folder {beyond[0]} is no class; folders are 0 to {entry.classes - 1}", where=str(folder))
    ordered = {name: classes[name] for name in sorted(classes, key=int)}
    return [str(label) for label in range(entry.classes)], {"test": _labelled(ordered, int, folder)}


def find_class_folders(root: Path, name: re.Pattern[str] | None = None) -> ImagesOfClass:
    """Map the name of each class folder to its images. A class folder is a folder below ``root`` that holds images.

    Images in ``root`` itself, hidden files, and hidden and system folders are ignored. If ``name`` is given, it has to
    match the name of a class folder. The images in any other folder are ignored, but its sub-folders are searched.
    Links to folders outside ``root`` are followed, but not links to a folder that encloses the link.

    Raises:
        UserError: there are no class folders, they are not equally deep, two have the same name, or a folder at their
            depth holds neither images nor folders.
    """
    images: dict[Path, list[Path]] = {}
    empty: list[Path] = []
    others: list[str] = []
    inner = root.resolve()
    for place, folders, files in os.walk(root, followlinks=True):
        here = Path(place)
        visible = sorted(name for name in folders if not image_folders.is_system(name))
        folders[:] = [name for name in visible if not _leads_back(here / name, inner)]
        held = sorted(here / file for file in files if image_folders.is_image(Path(file)))
        if here == root or (name is not None and not name.fullmatch(here.name)):
            others += [here.name] * bool(held and here != root)
        elif held:
            images[here] = held
        elif not folders:
            empty.append(here)
    if not images:
        hint = image_folders.how_to_lay_out(root) if root.is_dir() else "there is no such folder"
        if others:
            hint = f"folder {others[0]!r} holds images, but its name does not have the form of a class folder's name"
        raise UserError("there are no class folders of images", where=str(root), hint=hint)
    some = next(iter(images))
    depth = len(some.parts)
    if other := next((path for path in images if len(path.parts) != depth), None):
        what = f"{some.relative_to(root)} and {other.relative_to(root)} hold images, but are not equally deep"
        raise UserError(what, where=str(root))
    if without_images := [path for path in empty if len(path.parts) == depth]:
        raise UserError("the class folder holds no images", where=str(without_images[0]))
    ordered = sorted(images, key=lambda path: path.name)
    for first, second in pairwise(ordered):
        if first.name == second.name:
            what = f"{first.relative_to(root)} and {second.relative_to(root)} have the same class name"
            raise UserError(what, where=str(root), hint="rename one of them")
    return {path.name: images[path] for path in ordered}


def _leads_back(path: Path, root: Path) -> bool:
    """Return whether a path is a link that must not be followed.

    Such a link leads into ``root``, which is searched anyway, or to a folder that encloses ``root`` or the link, so
    that the search would not end.
    """
    if not path.is_symlink():
        return False
    target = path.resolve()
    return target.is_relative_to(root) or any(inner.is_relative_to(target) for inner in (root, path.parent.resolve()))


def _labelled(classes: ImagesOfClass, label_of: Callable[[str], int], root: Path) -> Part:
    files = [path for paths in classes.values() for path in paths]
    return file_part(files, [label_of(name) for name, paths in classes.items() for _ in paths], root)
