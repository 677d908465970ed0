"""Notes on images that belong together, such as the frames of a video, but are in both parts, or may be.

Such images make results too good. What belongs together is told by a column of a table or by the images' names.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from bolt.image_folders import is_portion, part_of
from orchestrator.util.units import listed

SHOWN = 6

_OF_GROUPS = re.compile(
    r"(.*[\W\d_])?(patient|subject|person|participant|donor|animal|individual|specimen|lesion|slide|video|clip|sequence"
    r"|session|scene|series|site|hospital|location|station|camera|burst|plot|case|study|exam"
    r"|observation|track|driver)[\W_]*(id|name|number|num|no|code|instanceuid)?", re.I
)  # fmt: skip
"""Matches a column that says which images belong together, as ``patient_id`` does, but not ``patient_age``."""

_BY_DATE = re.compile(r"\D*20\d\d\D?\d\d\D?\d\d(-WA\d+|(\D| \D{1,9} )\d\d\D?\d\d\D?\d\d(\d{3})?)|\D*(19|20)\d\d_\d{6}")
"""Matches the name that a phone gives a photograph by date and time, such as ``IMG_20260102_030405`` or ``WhatsApp
Image 2026-01-02 at 10.00.01``, and PASCAL VOC's by year, ``2007_000027``."""

_IN_SERIES = re.compile(
    r"(.+[\W_])(?:left|right|front|back|side|top|red|green|blue|nir"
    r"|(?:new)?\d*(?:deg|pixel|flip|rot|mirror|aug)[^\W_]*)"
    r"|(.*\d.*\D)\d+", re.I
)  # fmt: skip
"""Matches a name with a number before its last number, as frames of videos have, and a name that ends in a view
(``10_left``) or a change (``7_flipLR``)."""

_CHANGED = re.compile(r"_[a-z]{3,4}\.rf\.[\da-f]{32}", re.I)
"""Matches what Roboflow adds to the names of augmented copies, as in ``cat_jpg.rf.HASH``."""

SERIES = "the names look like frames of videos, slices of scans, views or augmented copies: images of one series"
_TOO_GOOD = "in both parts, training and test, which makes results too good"


def group_notes(columns: Mapping[str, list[str]], labels: Sequence[str], parts: Sequence[str | None]) -> list[str]:
    """Return a note if a column groups the images, and a class has several groups.

    If the table states the parts, there is a note only if images that belong together are in both.

    ``parts``: the part of each row: ``train``, ``test`` or another one that is not used; or ``all``.
    """
    for name, values in columns.items():
        groups = {*zip(labels, values, strict=True)}
        if not _OF_GROUPS.fullmatch(name) or len({*values}) == len(labels) or len(groups) == len({*labels}):
            continue
        if "all" in parts:
            what = f"rows of one {name!r} may be {_TOO_GOOD}"
            return [f"{what}; to keep them together, add a column 'split' with train and test"]
        train, test = ({v for v, own in zip(values, parts, strict=True) if own == part} for part in ("train", "test"))
        if both := sorted(train & test - {""}):
            return [f"rows of one {name!r} are {_TOO_GOOD}: {listed(both, SHOWN)}"]
    return []


def series_notes(images: Mapping[str, Sequence[tuple[str, str | PurePath]]]) -> list[str]:
    """Return a note if there are series among the training images, see :func:`series_of`.

    A series is several images of a class whose paths match :data:`_IN_SERIES` with the same first part. If there are
    test images, there is a note only if a series goes on in them.

    ``images``: ``train`` and ``test``, or ``all`` -> the class and the path of each image.
    """
    series = series_of(images.get("train") or images.get("all", ()))
    state, remedy = "may be", "; to keep series together, give train/ and test/, or a table with a column 'split'"
    if series and "test" in images:  # two series that share a name were numbered anew in each part
        tests = {key: {*paths.values()} for key, paths in _series(images["test"]).items()}
        series = {key: of for key, of in series.items() if key in tests and tests[key].isdisjoint(of.values())}
        state, remedy = "are", f": {len(series)} series"
    return [f"{SERIES}, such as {min(series)[1]}..., {state} {_TOO_GOOD}{remedy}"] if series else []


def series_of(images: Sequence[tuple[str, str | PurePath]]) -> dict[tuple[str, str], dict[int, str]]:
    """Return the series of two or more images: (class, first part of their paths) -> position -> path.

    Only classes that have most of their images in series count. The result is empty if these classes have fewer than
    1.5 series each on average.
    """
    series = {key: paths for key, paths in _series(images).items() if len(paths) > 1}
    sizes = Counter(label for label, _ in images)
    inside = Counter(label for (label, _), paths in series.items() for _ in paths)
    classes = {label for label, count in inside.items() if 2 * count > sizes[label]}
    series = {key: paths for key, paths in series.items() if key[0] in classes}
    return series if 2 * len(series) >= 3 * len(classes) else {}


def _series(images: Sequence[tuple[str, str | PurePath]]) -> dict[tuple[str, str], dict[int, str]]:
    """Return (class, first part of a path) -> position -> path, of the images of this class with this first part."""
    found = defaultdict[tuple[str, str], dict[int, str]](dict)
    for position, (label, path) in enumerate(images):
        first, text = _first_part(path)
        if first:
            found[label, first][position] = text
    return found


def _first_part(path: str | PurePath) -> tuple[str, str]:
    """Return the first part of a path, which its series shares, and the path. Without a series, the part is empty."""
    *folders, name = PurePath(path).parts
    stem = name.rpartition(".")[0] or name
    text = "/".join([*(folder for folder in folders if part_of(folder) is None and not is_portion(folder)), stem])
    plain = _CHANGED.sub("", text)
    match = None if _BY_DATE.fullmatch(_CHANGED.sub("", stem)) else _IN_SERIES.fullmatch(plain)
    return (match[1] or match[2] if match else plain * (plain != text)), text


def table_rows(
    parts: Sequence[str | None], labels: Sequence[str], files: Sequence[str]
) -> dict[str, list[tuple[str, str]]]:
    """Return the class and the file of each row of a table, by part.

    A folder with images of more than half of the classes, such as ``images_001``, is left out of the files: it says
    nothing about series.
    """
    classes, rows = defaultdict[str, set[str]](set), defaultdict[str, list[tuple[str, str]]](list)
    half = len({*labels}) / 2
    for label, file in zip(labels, files, strict=True):
        classes[os.path.dirname(file)].add(label)
    shared = {folder for folder, of in classes.items() if len(of) > half}
    for part, label, file in zip(parts, labels, files, strict=True):
        rows[part or ""].append((label, os.path.basename(file) if os.path.dirname(file) in shared else file))
    return rows
