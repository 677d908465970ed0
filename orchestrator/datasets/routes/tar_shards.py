"""Read WebDataset shards: tar files of samples. Members with the same name before the suffix are one sample.

``0017.jpg`` and ``0017.cls``, for example, are an image and its label.

Images stay in the shards. A shard is read once, to note where each image starts and to read the labels.
"""

import io
import json
import os
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Self

from bolt.clip.image_files import ImageSource
from bolt.image_folders import image_suffixes, part_of
from orchestrator.catalog.routes import TABLES, files_of
from orchestrator.util.errors import UserError, explained

TEXTS = ("cls", "txt", "json")
MAX_TEXT = 1 << 20
"""Largest size in bytes of a sample's label or description."""

_Sample = tuple[dict[str, Callable[[], ImageSource]], dict[str, str]]
"""A pair for one sample: its images (suffix of a file -> function that returns the image), and its texts (column ->
text)."""


class TarMember(tarfile.TarInfo):
    """A tar member that reports a truncated archive; plain ``tarfile`` takes an invalid block for the end mark."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """Return the next member. Raises ``tarfile.ReadError`` when the archive ends without its end mark."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # typeshed lacks this class
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"it ends early ({error})") from None


def _bytes_of(shard: Path, start: int, size: int) -> io.BytesIO:
    """Return ``size`` bytes of a shard, such as an image. They start at the byte ``start``."""
    with open(shard, "rb") as stream:
        stream.seek(start)
        return io.BytesIO(stream.read(size))


def is_table(path: Path) -> bool:
    """Return whether a path is a file or a pattern such as ``{train,test}.csv``, and not a folder of images."""
    return path.is_file() or (not path.is_dir() and (path.suffix.lower() == ".tar" or files_of(path) != [path]))


def folder_of(pattern: Path) -> Path:
    """Return the lowest folder that holds all files of a pattern such as ``FOLDER/{000..099}.tar``."""
    several = files_of(pattern) != [pattern]
    return Path(str(pattern).partition("{")[0] + "*").parent if several else pattern.parent


def one_pattern(paths: Sequence[Path]) -> Path:
    """Return one pattern, such as ``{000,001}.tar``, for several tables. A single path is returned unchanged.

    Raises ``UserError`` if several paths are not tables of one format, or if one has a comma or a brace in it. Inside a
    pattern, these signs would be read as a part of the pattern.
    """
    if len(paths) == 1:
        return paths[0]
    suffix = next((path.suffix for path in paths if path.suffix.lower() in TABLES), None)
    if other := next((path for path in paths if path.suffix != suffix or set("{,}") & set(str(path))), None):
        what = "several paths are added together only if they are tables of one format, without a comma or a brace"
        raise UserError(what, where=str(other), hint="give one folder or table")
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.absolute().relative_to(root).with_suffix("").as_posix() for path in paths]
    return root / f"{{{','.join(names)}}}{suffix}"


def part_in(name: str) -> str:
    """Return the part that a file's name states, such as ``train`` for ``trainLabels-000.tar``; or an empty text."""
    words = re.split("[/_.-]", name) + re.findall("[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)
    return next(filter(None, map(part_of, words)), "")


def parts_by_name(columns: dict[str, list[str]], notes: list[str], where: Path) -> dict[str, list[str]]:
    """Return a table without its column ``split``, unless the column has both ``train`` and ``test``.

    The column holds the parts that the names of the files state. ``notes`` gets a remark if the names state several
    parts, but not both ``train`` and ``test``.

    Raises ``UserError`` if the names of some files state ``test``, and those of others no part.
    """
    parts = {part_of(part) or part for part in columns.get("split", ())}
    if {"", "test"} <= parts:
        what = "some of the files are called test, and others neither train nor test"
        hint = "write train or test into the names of all files, or add a column split"
        raise UserError(what, where=str(where), hint=hint)
    if {"train", "test"} <= parts:
        return columns
    if len(parts - {""}) > 1:
        named = " and ".join(sorted(parts - {""}))
        notes.append(f"the files are called {named}, not train and test: they are read as one part")
    return {name: values for name, values in columns.items() if name != "split"}


def read_shards(pattern: Path) -> tuple[dict[str, list[str]], list[str], dict[str, Callable[[], ImageSource]]]:
    """Return a table of the samples, remarks, and the readers of the images.

    The table maps a column's name to its values. The columns are ``path``, ``cls``, ``txt`` and the fields of the
    ``json`` files. If shards for training and shards for testing have names that say so, such as ``train-000.tar``,
    there is a column ``split`` too. The readers map a path, such as ``000.tar/0017.jpg``, to a function that returns
    the image.

    Raises ``UserError`` for a shard that is missing or damaged, and for a sample with two images.
    """
    root = folder_of(pattern)
    rows: list[dict[str, str]] = []
    readers: dict[str, Callable[[], ImageSource]] = {}
    unused = Counter[str]()
    for shard in files_of(pattern):
        name = shard.relative_to(root).as_posix()
        split = part_in(name)
        for sample, (images, texts) in _samples(shard, unused).items():
            if len(images) > 1:
                what = f"the sample {sample} has the images {' and '.join(sorted(images)[:2])}, not one image"
                raise UserError(what, where=str(shard))
            for suffix, reader in images.items():
                path = f"{name}/{sample}.{suffix}"
                readers[path] = reader
                rows.append({"path": path, **({"split": split} if split else {}), **texts} | {"path": path})
            unused["samples without an image"] += not images
    notes = [f"{kind}: {count}, not used" for kind, count in unused.items() if count]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name, "") for row in rows] for name in names}
    return parts_by_name(columns, notes, pattern), notes, readers


def _samples(shard: Path, unused: Counter[str]) -> dict[str, _Sample]:
    """Return the samples of a shard by name; ``unused`` counts the members that are in no sample."""
    found: defaultdict[str, _Sample] = defaultdict(lambda: ({}, {}))
    errors, what = (tarfile.TarError, OSError, ValueError, RecursionError), "cannot be read as a tar file of samples"
    with explained(*errors, what=what, where=str(shard)), tarfile.open(shard, "r:", tarinfo=TarMember) as stream:
        for member in stream:
            path = PurePosixPath(member.name.removeprefix("./"))
            key, _, suffix = path.name.partition(".")
            if not member.isreg() or not key or member.issparse():
                unused["links, hidden and special files"] += not member.isdir()
                continue
            is_image = PurePosixPath(path.name).suffix.lower() in image_suffixes()
            if not is_image and suffix.lower() not in TEXTS:
                unused["files that are neither images nor labels"] += 1
                continue
            images, texts = found[(path.parent / key).as_posix()]
            if not is_image:
                if member.size > MAX_TEXT:
                    raise UserError(f"{member.name} is larger than {MAX_TEXT} bytes", where=str(shard))
                content = stream.extractfile(member)
                texts |= _texts(suffix.lower(), content.read() if content else b"")
            elif suffix in images:
                raise UserError(f"{member.name} is there twice", where=str(shard))
            else:
                images[suffix] = partial(_bytes_of, shard, member.offset_data, member.size)
        after = _bytes_of(shard, stream.offset, 1 << 16).read()
        unused["parts of shards after their end mark, as in joined tar files"] += bool(after.strip(b"\0"))
    return dict(found)


def _texts(suffix: str, content: bytes) -> dict[str, str]:
    """Return the texts in a member of a tar file: column of the table -> text.

    Raises ``ValueError`` if the content is no text, or if a ``json`` member is no JSON.
    """
    text = content.decode("utf-8-sig").strip()
    if suffix != "json":
        return {suffix: text}
    fields = json.loads(text)
    if not isinstance(fields, dict):
        return {}
    return {name: str(value).strip() for name, value in fields.items() if isinstance(value, str | int | float)}
