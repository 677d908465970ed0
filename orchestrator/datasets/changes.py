"""Find changes of a user's images since they were added, by a record of their checksums.

``data add`` writes the record to ``ROOT/NAME.checksums.json``. Later, a file is read again only if its size or its time
stamp has changed. The record also has a digest of the images that were there at first.
"""

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.catalog import Catalog, DatasetEntry, dataset_folder, excluded_images, missing_data
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.part import RawDataset
from orchestrator.datasets.splits import split_manifest
from orchestrator.datasets.verify import check_image
from orchestrator.util.atomic_files import replace_text
from orchestrator.util.errors import UserError
from orchestrator.util.identity import file_digest, fingerprint
from orchestrator.util.threads import thread_map
from orchestrator.util.units import listed, pluralize

SHOWN = 4
_UNDECODABLE = "cannot be decoded"


class ImageFile(NamedTuple):
    """The record of one image: its part, its class, and the size, time stamp and checksum of its file."""

    part: str
    label: str
    size: int
    modified: int
    digest: str


def checksums_file(entry: DatasetEntry, data_root: Path) -> Path:
    """Return the path of the record of a dataset's image files."""
    return data_root / f"{entry.name}.checksums.json"


def record_checksums(entry: DatasetEntry, data_root: Path) -> list[str]:
    """Record the current image files of a user's folder or table of images. Return a note if that is impossible.

    For an image inside a parquet or tar file, the parquet or tar file is recorded.
    """
    if entry.is_own and not _write(entry, data_root, _image_files(entry, data_root, {})):
        return [f"{data_root} cannot be written to, so images that are replaced later will not be noticed"]
    return []


def shared_images(entry: DatasetEntry, data_root: Path, catalog: Catalog) -> dict[str, int]:
    """Return the user's datasets that share image files with ``entry``: name -> number of its images in such files.

    Datasets without a record of their files are skipped, and so are those that state ``entry`` in ``images_of``.
    """
    shared, mine = {}, set[str]()
    for name, other in catalog.datasets.items():
        if other.is_own and entry.name not in (name, *other.images_of) and (recorded := _read(other, data_root)):
            if not mine:
                files = _image_files(entry, data_root, _read(entry, data_root) or {})
                mine = {image.digest for image in files.values()}
            if number := sum(image.digest in mine for image in recorded.values()):
                shared[name] = number
    return shared


def changed_data(entry: DatasetEntry, data_root: Path | None, catalog_file: str) -> UserError | None:
    """Return an error that names the changes of a folder or table of images since it was added.

    Return ``None`` if nothing changed or the images are not on this machine. Without a record, the numbers of classes
    and images are compared with the catalog entry. ``catalog_file``: the file that holds the entry; the error's hint
    names it.
    """
    if not entry.is_own or data_root is None or missing_data(entry, data_root) is not None:
        return None
    try:
        found = changes(entry, data_root)
    except UserError as error:
        found = [str(error)]
    if not found:
        return None
    lines = "\n  ".join(found)
    path = dataset_folder(entry, data_root) / getattr(entry.route, "file", "")
    words = ["data", "add", str(path), "--name", entry.name, "--catalog", catalog_file]
    words += ["--replace", *(["--exclude-broken"] if _UNDECODABLE in lines else [])]
    accept = shlex.join(["python", "-m", "orchestrator", *words])
    what = f"the images of dataset {entry.name} do not agree with its catalog entry:\n  {lines}"
    return UserError(what, hint=f"put the images back, or accept the changes: {accept}")


def is_unchanged(entry: DatasetEntry, data_root: Path) -> bool:
    """Return whether the images are still those that were added. Without a record, a user's images count as changed.

    A label that was corrected in a table is none of the :func:`changes`. It is noticed if the size of the smallest
    class differs.
    """
    if not entry.is_own:
        return True
    if _read(entry, data_root) is None or changes(entry, data_root):
        return False
    return min(open_dataset(entry, data_root).class_sizes("train")) == entry.smallest_class


def changes(entry: DatasetEntry, data_root: Path) -> list[str]:
    """List how a dataset's images differ from its record or, without a record, from its catalog entry.

    Raises ``UserError`` if the dataset cannot be opened.
    """
    raw = open_dataset(_with_own_names(entry), data_root)
    excluded = excluded_images(entry, data_root)
    if (recorded := _read(entry, data_root)) is None:
        return split_manifest(entry, raw).differs(entry, len(excluded))
    now = _image_files(entry, data_root, recorded, raw)
    before = {path: image for path, image in recorded.items() if path not in excluded}
    found = _differences(before, now, raw)
    if not found and now != before:  # record new time stamps, so that the next check reads no file
        _write(entry, data_root, now)
    return found


def are_first_images(entry: DatasetEntry, data_root: Path) -> bool:
    """Return whether the images are those with which the dataset was added, before any were replaced."""
    now = _image_files(entry, data_root, _read(entry, data_root) or {})
    return _digest_of(now) == _stored(entry, data_root).get("first")


def _with_own_names(entry: DatasetEntry) -> DatasetEntry:
    """Return the entry without class words, so that the dataset can be opened although a class was renamed."""
    return entry.model_copy(update={"class_names": None, "renamed": {}})


def _image_files(
    entry: DatasetEntry, data_root: Path, known: Mapping[str, ImageFile], raw: RawDataset | None = None
) -> dict[str, ImageFile]:
    """Return the records of all images, by their paths in the dataset's folder.

    The checksum of a file is taken from ``known`` if the file has the size and the time stamp that ``known`` states.
    ``raw``: the dataset, if it is open already.
    """
    folder, raw = dataset_folder(entry, data_root), raw or open_dataset(_with_own_names(entry), data_root)
    images = [(name, part, index) for name, part in raw.parts.items() for index in range(len(part))]
    digest = cache(partial(file_digest, kind=partial(hashlib.blake2b, digest_size=16)))

    def look(number: int) -> tuple[str, ImageFile]:
        name, part, index = images[number]
        path, label = part.origin(index), raw.class_names[part.labels[index]]
        file = _holder(folder, path)
        stat = file.stat()
        before = known.get(path)
        if before is not None and (before.size, before.modified) == (stat.st_size, stat.st_mtime_ns):
            return path, before._replace(part=name, label=label)
        return path, ImageFile(name, label, stat.st_size, stat.st_mtime_ns, digest(file))

    return dict(thread_map(look, len(images)))


def _holder(folder: Path, origin: str) -> Path:
    """Return the file that holds an image: an image file, a tar file or a parquet file."""
    own = folder / origin
    return next((path for path in (own, *own.parents) if path.is_file()), folder / origin.rpartition("[")[0])


def _differences(before: Mapping[str, ImageFile], now: Mapping[str, ImageFile], raw: RawDataset) -> list[str]:
    """Return lines on the removed and added classes and images, and on images whose content changed."""
    known, there = ({image.label for image in images.values()} for images in (before, now))
    lines = [f"class {name!r} is not there any more" for name in sorted(known - there)]
    lines += [f"class {name!r} was added" for name in sorted(there - known)]
    for part in ("train", "test"):
        old = {path for path, image in before.items() if image.part == part}
        new = {path for path, image in now.items() if image.part == part}
        for paths, word in ((old - new, "removed"), (new - old, "added")):
            if paths:
                lines.append(f"{pluralize(len(paths), f'{part} image')} {word}: {listed(sorted(paths), SHOWN)}")
    if other := {path for path, image in now.items() if path in before and before[path].digest != image.digest}:
        whole = sum(path in before for path in now)
        have, shown = "has" if len(other) == 1 else "have", listed(sorted(other), SHOWN)
        lines.append(f"{len(other)} of {pluralize(whole, 'image')} {have} other content: {shown}")
        for name, images in raw.parts.items():
            checks = [check_image(raw, name, i) for i in range(len(images)) if images.origin(i) in other]
            lines += [f"{check.origin} {_UNDECODABLE}: {check.reason}" for check in checks if check.reason]
    return lines


def _read(entry: DatasetEntry, data_root: Path) -> dict[str, ImageFile] | None:
    """Return the record of a dataset; ``None`` if there is no record or it cannot be read."""
    with contextlib.suppress(KeyError, TypeError, AttributeError):
        return {str(path): ImageFile(*fields) for path, fields in _stored(entry, data_root)["images"].items()}
    return None


def _stored(entry: DatasetEntry, data_root: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(json.loads(checksums_file(entry, data_root).read_text(encoding="utf-8")))
    return {}


def _digest_of(images: Mapping[str, ImageFile]) -> str:
    return fingerprint(sorted((path, image.part, image.label, image.digest) for path, image in images.items()))


def _write(entry: DatasetEntry, data_root: Path, images: Mapping[str, ImageFile]) -> bool:
    """Write the record of a dataset, and return whether the data root could be written to."""
    first = _stored(entry, data_root).get("first") if entry.contents else _digest_of(images)
    with contextlib.suppress(OSError):
        replace_text(checksums_file(entry, data_root), json.dumps({"first": first, "images": images}, indent=0))
        return True
    return False
