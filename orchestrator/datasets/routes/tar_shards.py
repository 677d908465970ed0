"""Read WebDataset shards: tar files whose members of one name, such as ``0017.jpg`` and ``0017.cls``, are a sample.

Images stay in the shards. A shard is read once, for the places of its images and its small files.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from bolt.clip.image_files import ImageSource
from bolt.image_folders import image_suffixes, part_of
from orchestrator.catalog.routes import expand_braces
from orchestrator.datasets.tar_member import TarMember
from orchestrator.util.errors import UserError

TEXTS = ("cls", "txt", "json")
MAX_TEXT = 1 << 20
"""Bytes of a sample's label or description; a larger member is refused."""


class Place(NamedTuple):
    """Where an image lies: its shard, its first byte and the number of its bytes."""

    shard: Path
    start: int
    size: int

    def content(self) -> io.BytesIO:
        """Return the image's file."""
        with open(self.shard, "rb") as stream:
            stream.seek(self.start)
            return io.BytesIO(stream.read(self.size))


def folder_of(pattern: Path) -> Path:
    """Return the folder that holds the shards of a pattern, or their folders."""
    return Path(str(pattern).partition("{")[0] + "*").parent if "{" in str(pattern) else pattern.parent


def one_pattern(paths: Sequence[Path]) -> Path:
    """Return the pattern of several shards, as a shell gives them. Raises ``UserError`` for other files."""
    if len(paths) == 1:
        return paths[0]
    if other := next((path for path in paths if path.suffix != ".tar" or set("{,}") & set(str(path))), None):
        raise UserError("only .tar shards are added together", where=str(other), hint="give one folder or table")
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.absolute().relative_to(root).with_suffix("").as_posix() for path in paths]
    return root / f"{{{','.join(names)}}}.tar"


def read_shards(pattern: Path) -> tuple[dict[str, list[str]], list[str], dict[str, Callable[[], ImageSource]]]:
    """Return the samples as a table, remarks, and what gives each image, by its path, ``000.tar/0017.jpg``.

    Columns are ``path``, ``cls``, ``txt`` and the fields of ``json``; and ``split`` if the shards' names tell it, as
    ``train-000.tar`` and ``test-000.tar``.

    Raises ``UserError`` for a shard that is missing or damaged, and for a sample with two images.
    """
    root = folder_of(pattern)
    rows: list[dict[str, str]] = []
    places: dict[str, Callable[[], ImageSource]] = {}
    unused = Counter[str]()
    for shard in map(Path, expand_braces(str(pattern))):
        name = shard.relative_to(root).as_posix()
        words = name.replace("/", "-").replace("_", "-").replace(".", "-").split("-")
        split = next(filter(None, map(part_of, words)), "")
        for sample, (images, texts) in _samples(shard, unused).items():
            if len(images) > 1:
                what = f"the sample {sample} has the images {' and '.join(sorted(images)[:2])}; it must have one"
                raise UserError(what, where=str(shard))
            for suffix, place in images.items():
                path = f"{name}/{sample}.{suffix}"
                places[path] = place.content
                rows.append({"path": path, **({"split": split} if split else {}), **texts})
            unused["samples without an image"] += not images
    if not {"train", "test"} <= {row.get("split") for row in rows}:
        rows = [{name: text for name, text in row.items() if name != "split"} for row in rows]
    columns = {
        name: [row.get(name, "") for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
    }
    return columns, [f"{kind}: {count}, not used" for kind, count in unused.items() if count], places


def _samples(shard: Path, unused: Counter[str]) -> dict[str, tuple[dict[str, Place], dict[str, str]]]:
    """Map the names of samples to their images by suffix, and to their texts by column; ``unused`` counts the rest."""
    found: defaultdict[str, tuple[dict[str, Place], dict[str, str]]] = defaultdict(lambda: ({}, {}))
    try:
        with tarfile.open(shard, "r:", tarinfo=TarMember) as stream:
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
                    images[suffix] = Place(shard, member.offset_data, member.size)
    except FileNotFoundError:
        raise UserError("there is no such shard", where=str(shard)) from None
    except (tarfile.TarError, OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot be read as a tar file of samples: {error}", where=str(shard)) from None
    return dict(found)


def _texts(suffix: str, content: bytes) -> dict[str, str]:
    """Return a sample's label or texts by column. Raises ``ValueError`` if it is no text, or no JSON."""
    text = content.decode("utf-8-sig").strip()
    if suffix != "json":
        return {suffix: text}
    fields = json.loads(text)
    if not isinstance(fields, dict):
        return {}
    return {name: str(value).strip() for name, value in fields.items() if isinstance(value, str | int | float)}
