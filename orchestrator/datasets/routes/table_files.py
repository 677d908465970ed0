"""Find the image files that the rows of a table mean.

A path in a table usually leads from the table's folder to an image. It may also be the name of a file anywhere below
that folder, with or without suffix, or it may begin in a folder above that folder.
"""

import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from bolt.image_folders import images_below, is_image, part_of
from orchestrator.catalog.routes import is_inside
from orchestrator.datasets.routes.tar_shards import part_in
from orchestrator.util.errors import UserError, shorten
from orchestrator.util.units import listed

SHOWN = 10
_Columns = Sequence[Sequence[str | None]]


def find_files(
    paths: Sequence[str], labels: Sequence[str], folder: Path, table: Path, splits: Sequence[str | None] = ()
) -> list[str]:
    """Return the path of each row's image below ``folder``.

    If a path fits several images, it means the one that lies in a folder of the row's split, of its label, or of the
    part that the table's name states.

    Raises ``UserError`` for an image that is missing or listed twice, and for a path that leaves the folder or fits
    several images.
    """
    given = [path.replace("\\", "/") for path in paths]
    for row, path in enumerate(given, start=1):
        if ".." in path.split("/"):
            what = f"row {row}: the path {path!r} does not stay inside the folder"
            raise UserError(what, where=str(table), hint="put the table into a folder that holds all its images")
    given = [posixpath.normpath(path) for path in given]
    if not all(is_inside(path) and os.path.isfile(folder / path) for path in given):
        given = matched(given, folder, table, [splits, labels, [part_in(table.stem)] * len(given)])
    labelled: dict[str, str] = {}
    for row, (path, label) in enumerate(zip(given, labels, strict=True), start=1):
        if path in labelled:
            both = f", as {labelled[path]!r} and as {label!r}" * (labelled[path] != label)
            what = f"row {row}: {path} is listed twice{both}"
            raise UserError(what, where=str(table), hint="leave one row for each image")
        labelled[path] = label
    return given


def matched(given: Sequence[str], folder: Path, table: Path | None = None, kept_by: _Columns = ()) -> list[str]:
    """Return for each path of ``given`` the image that it means, as a path below ``folder``.

    A path that leads to a file means this file. Any other path may be the end of an image's path: ``1.jpg`` or ``1``
    means ``dog/1.jpg``, and ``1`` may mean ``dog/0001.jpg``, because spreadsheets drop zeros.

    If some path fits no image, the table's paths may begin in a folder above ``folder``. Then their first folder is
    removed, then the second, and so on, until what is left of each path is the whole path of an image below ``folder``.
    Only folders that all paths share are removed: without ``dog`` and ``cat``, ``dog/1.jpg`` and ``cat/1.jpg`` would
    both become ``1.jpg``. If the paths begin at the root or at a server, the folders here may have other names: what is
    left may be the end of an image's path, unless a removed folder is a part, such as ``train``. If no path fits an
    image, ``1.dcm`` may mean ``1.png``, and ``my%20cat.jpg`` means ``my cat.jpg``.

    ``table``: the table, for messages. Without it, all folders must have the same names here.

    ``kept_by``: columns, such as the labels, whose values are often names of folders. Of several images, a path means
    those in a folder that has the name of the row's value.

    Raises ``UserError`` if a path fits no image, or several images.
    """
    images = [path.relative_to(folder).as_posix() for path in images_below(folder)]
    ends, numbered = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for image in images:
        for key in {_plain(image), _plain(str(PurePosixPath(image).with_suffix("")))}:
            steps = key.split("/")
            for start in range(len(steps)):
                ends["/".join(steps[start:])].append(image)
            if steps[-1].isdecimal():
                numbered[str(int(steps[-1]))].append(image)

    def matches(path: str, above: str = "", only_whole: bool = False) -> list[str]:
        if is_inside(path) and os.path.isfile(folder / path):  # Path.is_file would raise for a name that is too long
            return [path]
        rest = path.removeprefix(above)
        found = ends.get(_plain(rest), [])
        whole = [image for image in found if image.count("/") == rest.count("/")]
        return whole if only_whole else whole or found or numbered[rest]

    steps = given[0].split("/")
    of_server = table is not None and (not steps[0] or ":" in steps[0])
    tops = ["/".join(steps[:length]) + "/" for length in range(1, len(steps))]
    for above in ("", *(top for top in tops if all(path.startswith(top) for path in given))):
        only_whole = bool(above and (part_in(above) or not of_server))
        found = [matches(path, above, only_whole) for path in given]
        if all(found):
            break
    else:
        missing = [path for path in given if not matches(path)]
        bare = [path if is_image(Path(path)) else re.sub(r"\.(0|[^\W\d][^./]*)$", "", path) for path in given]
        named = [re.sub(r"(?<=/)[\da-f]{8}-(?=[^/]+$)", "", path) for path in given]
        # Codes of addresses, suffixes of files that were converted to images, the ".0" of whole numbers, and what Label
        # Studio writes before the names of uploaded files.
        for others in ([*map(unquote, given)], bare, named) if len(missing) == len(given) else ():
            with suppress(UserError):
                if others != given and len({*others}) == len(given):
                    return matched(others, folder, table, kept_by)
        outside = all(os.path.isabs(path) and os.path.isfile(path) for path in missing)
        what = f"{len(missing)} of {len(given)} images are not " + ("below the table's folder" if outside else "there")
        what += ":\n  " + listed([*map(shorten, missing)], SHOWN, "\n  ")
        hint = "write paths relative to the table's folder, or the names of files below it"
        hint = "put the table into a folder that holds all its images" if outside else hint
        raise UserError(what, where=str(table), hint=hint)
    chosen: list[str] = []
    for row, several in enumerate(found, start=1):
        for values in filter(None, kept_by if len(several) > 1 else ()):
            several = [image for image in several if _is_in(image, values[row - 1])] or several
        chosen += several[:1]
        if len(several) > 1:
            what = f"row {row}: {given[row - 1]} may mean {' or '.join(several[:2])}"
            hint = f"write paths relative to the table's folder, such as {several[0]}, or move the other images away"
            raise UserError(what, where=str(table), hint=hint)
    return chosen


def _is_in(image: str, name: str | None) -> bool:
    """Return whether one of an image's folders has this name, or means this part."""
    return any(_plain(step) == _plain(name or "") or part_of(step) == name for step in image.split("/")[:-1])


def _plain(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()
