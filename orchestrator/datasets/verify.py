"""``data verify``: decode and count every image of a dataset, and list or exclude the unreadable ones."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bolt.clip.image_files import UNREADABLE, ReadAs, read_as, reading_notes
from orchestrator.catalog import DatasetEntry, excluded_file, excluded_images, own_splits
from orchestrator.core.events import OnProgress
from orchestrator.datasets.copies import MOST, SIDE, facing, find_copies, small_version
from orchestrator.datasets.part import RawDataset
from orchestrator.datasets.splits import split_manifest
from orchestrator.util.atomic_files import replace_text, writing
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.grouping import grouped
from orchestrator.util.identity import fingerprint
from orchestrator.util.threads import thread_map
from orchestrator.util.units import pluralize

USUAL_SHOTS = (1, 2, 4, 8, 16)

_LISTABLE = re.compile("[^\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]+")
"""Matches a file name that can be a line of a list: without tabs, line breaks and bytes that are not UTF-8."""

_MISTAKEN = 2
"""Largest number of copies of a picture that may have another label than most of its copies."""

_NO_PICTURE = np.zeros((3, SIDE, SIDE), np.uint8)


class ImageCheck(NamedTuple):
    """The check of one image. Only a decoded image has the fields after ``reason``.

    Attributes:
        part: ``train`` or ``test``.
        origin: where the image is in the dataset's folder.
        word: the words of its class.
        reason: why the image cannot be decoded; empty if it can.
        digest: a checksum of the pixels.
        pixels: the number of pixels.
        small: a small version of the image, by which copies are found.
        read: how the image was read.
    """

    part: str
    origin: str
    word: str
    reason: str = ""
    digest: bytes = b""
    pixels: int = 0
    small: NDArray[np.uint8] = _NO_PICTURE
    read: ReadAs = ReadAs()


Copies = tuple[tuple[ImageCheck, ...], ...]
"""Groups of at least two images that are copies of one picture."""


@dataclass(frozen=True)
class Verified:
    """What ``data verify`` found in a dataset.

    Attributes:
        broken: images that cannot be decoded.
        copies: groups of images that show one picture, unchanged or nearly so.
        turned: groups of images of one class that are mirrored or rotated copies of each other.
        rotated: number of images whose EXIF orientation asks for a rotation.
        remarks: notes on parts of the image files that are not used, and a note if most images are dark.
        excluded: number of images that were excluded before this check.
        decoded: number of images that were checked, broken images included.
        image_side: side in pixels of a square with as many pixels as the images have on average; 0 without images.
        contents: a digest of the places, class words and pixels of all decoded images.
        differs: lines on how the counts and the split file differ from the catalog.
    """

    entry: DatasetEntry
    raw: RawDataset
    broken: tuple[ImageCheck, ...]
    copies: Copies
    turned: Copies
    rotated: int
    remarks: tuple[str, ...]
    excluded: int
    decoded: int
    image_side: int
    contents: str
    differs: tuple[str, ...]


def check_image(raw: RawDataset, name: str, index: int) -> ImageCheck:
    """Decode one image of the part called ``name``, and return what was found."""
    part = raw.parts[name]
    found = ImageCheck(name, part.origin(index), raw.class_names[part.labels[index]])
    try:
        plain = part.read(index)
        digest = hashlib.blake2b(f"{plain.mode} {plain.size}".encode(), digest_size=16)
        digest.update(plain.tobytes())
        size, small = plain.width * plain.height, small_version(plain)
        return found._replace(digest=digest.digest(), pixels=size, small=small, read=read_as(plain))
    except UNREADABLE as error:
        return found._replace(reason=one_line(error))


def verify_dataset(
    entry: DatasetEntry,
    raw: RawDataset,
    data_root: Path | None,
    advance: OnProgress = lambda done, of: None,
    *,
    parts: Sequence[str] = ("train", "test"),
) -> Verified:
    """Decode the images of the ``parts`` of an opened dataset."""
    total = sum(len(raw.parts[name]) for name in parts)
    checks: list[ImageCheck] = []
    for name in parts:
        for check in thread_map(partial(check_image, raw, name), len(raw.parts[name])):
            checks.append(check if total <= MOST else check._replace(small=_NO_PICTURE))
            advance(len(checks), total)
    decoded = [check for check in checks if not check.reason]
    pixels = [check.pixels for check in decoded]
    alike = find_copies([check.digest for check in decoded], [check.small for check in decoded])
    groups = _not_contradicted(alike, decoded)
    return Verified(
        entry=entry,
        raw=raw,
        broken=tuple(check for check in checks if check.reason),
        copies=tuple(tuple(decoded[n] for n in group) for group in groups),
        turned=_turned_copies(decoded, groups),
        rotated=sum(check.read.turned for check in checks),
        remarks=tuple(reading_notes((check.read for check in decoded), raw.train.reading)),
        excluded=len(excluded_images(entry, data_root)),
        decoded=total,
        image_side=math.ceil(math.sqrt(sum(pixels) / len(pixels))) if pixels else 0,
        contents=fingerprint([(check.part, check.origin, check.word, check.digest.hex()) for check in decoded]),
        differs=(*split_manifest(entry, raw).differs(entry), *own_splits([entry], data_root)),
    )


def _not_contradicted(groups: Iterable[Sequence[int]], decoded: Sequence[ImageCheck]) -> list[Sequence[int]]:
    """Return the groups of copies. A group whose labels say that it shows several pictures is replaced.

    Its images of equal pixels take its place. Photographs of parts in front of a fixed camera, with and without a
    scratch, resemble each other as copies do. Copies of one picture differ in label only by mistake, so few have the
    rarer labels.
    """
    found = list[Sequence[int]]()
    for group in groups:
        labels = Counter(decoded[n].word for n in group)
        one_picture = labels.total() - max(labels.values()) <= _MISTAKEN
        equal = grouped(group, lambda n: decoded[n].digest).values()
        found += [group] if one_picture else [each for each in equal if len(each) > 1]
    return found


def _turned_copies(decoded: Sequence[ImageCheck], copies: Sequence[Sequence[int]]) -> Copies:
    """Return the groups of mirrored or rotated copies in one class; the first image stands for its unchanged copies."""
    if len(decoded) > MOST:
        return ()
    first = {n: next(m for m in group if decoded[m].word == decoded[n].word) for group in copies for n in group}
    small = [facing(check.small) for check in decoded]
    found = find_copies([str(n).encode() for n in range(len(decoded))], small, cropped=False)
    groups = (sorted({first.get(n, n) for n in group}) for group in _not_contradicted(found, decoded))
    alike = (each for group in groups for each in grouped(group, lambda n: decoded[n].word).values())
    return tuple(tuple(decoded[n] for n in group) for group in alike if len(group) > 1)


def exclude_broken(found: Verified, data_root: Path) -> Path:
    """Add the unreadable images to the dataset's list of excluded images, and return the path of the list.

    Raises ``UserError`` if a class would have no training images or no test images any more.
    """
    for (part, word), count in Counter((broken.part, broken.word) for broken in found.broken).items():
        if count == found.raw.class_sizes(part)[found.raw.class_names.index(word)]:
            kind, hint = "training" if part == "train" else "test", "repair an image of the class, or remove the class"
            what = f"no {kind} image of class {word!r} can be read; the class would be empty"
            raise UserError(what, where=f"dataset {found.entry.name}", hint=hint)
    path = excluded_file(found.entry.name, data_root)
    listed = excluded_images(found.entry, data_root)
    listed |= {broken.origin: broken.reason for broken in found.broken}
    if unlistable := [origin for origin in listed if not _LISTABLE.fullmatch(origin)]:
        what = f"the name {unlistable[0]!r} has a tab, a line break or a byte that is not UTF-8, so it cannot be listed"
        raise UserError(what, hint="rename the file")
    with writing("the list of excluded images", str(path)):
        replace_text(path, "".join(f"{origin}\t{reason}\n" for origin, reason in sorted(listed.items())))
    return path


def image_notes(found: Verified, raw: RawDataset) -> list[str]:
    """Return remarks on added images. ``raw``: the dataset without the images that cannot be decoded."""
    notes = []
    if left_out := found.excluded + len(found.broken):
        notes.append(f"excluded as unreadable: {left_out} of {found.excluded + found.decoded} images")
    notes += copy_notes(found.copies, found.decoded, found.turned)
    if found.rotated:
        notes.append(f"images with an EXIF rotation: {found.rotated}; they are rotated upright")
    notes += found.remarks
    train = raw.class_sizes("train")
    if (smallest := min(train)) < max(USUAL_SHOTS):
        word = raw.class_names[train.index(smallest)]
        possible = ", ".join(str(k) for k in USUAL_SHOTS if k <= smallest)
        note = f"the smallest class, {word!r}, has {pluralize(smallest, 'training image')}: k can be {possible}"
        notes.append(f"{note}; more only with --set protocol.short_classes=take_all")
    return notes


def copy_notes(copies: Copies, images: int, turned: Copies = ()) -> list[str]:
    """Return notes on copies of images, and the same notes on mirrored or rotated copies (``turned``).

    One note lists the test images that are copies of a training image. One lists the copies with different labels. One
    counts the training images that are copies of another training image. If the number of all ``images`` exceeds
    ``MOST``, one says that only exact copies were searched for.
    """
    notes = [f"only exact copies were searched for: there are more than {MOST:,} images"] if images > MOST else []
    for groups, kind in ((copies, "copies"), (turned, "mirrored or rotated copies")):
        both = [group for group in groups if {each.part for each in group} == {"train", "test"}]
        leaks = [(one, next(each for each in group if each.part == "train"))
                 for group in both for one in group if one.part == "test"]  # fmt: skip
        mixed = [(group[0], next(each for each in group if each.word != group[0].word)) for group in groups
                 if len({each.word for each in group}) > 1]  # fmt: skip
        of_both_parts = f"test images that are {kind} of a training image"
        for what, pairs in ((of_both_parts, leaks), ("pictures with two labels", mixed)):
            if pairs:
                named = (f"    {one.origin} ({one.word}) = {other.origin} ({other.word})" for one, other in pairs)
                notes.append("\n".join([f"{what}: {len(pairs)}", *named]))
        learnt = [sum(each.part == "train" for each in group) for group in groups]
        if again := sum(count - 1 for count in learnt if count > 1):
            notes.append(f"training images that are {kind} of another training image: {again}")
    return notes
