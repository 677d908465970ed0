"""Read Hugging Face repositories: parquet shards whose rows hold an encoded image and a label.

Labels are read without the images. To read an image, its whole row group is read. The last ``KEPT_GROUPS`` row groups
are cached: no reader holds a whole file, and a reader that takes the images in order reads nothing twice.
"""

from __future__ import annotations

import io
import json
import re
import threading
from bisect import bisect
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import HuggingFaceRoute, PartName
from orchestrator.datasets.part import Contents, Part, make_part, numbered_classes, refetch_hint
from orchestrator.util.errors import UserError, explained, shorten
from orchestrator.util.grouping import grouped
from orchestrator.util.units import listed, pluralize

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SHARD = re.compile(r"-(?P<number>\d+)-of-(?P<count>\d+)[^/]*$")

SHOWN = 10
KEPT_GROUPS = 2
"""Number of row groups of a part whose encoded images are kept in memory. A row group has 100 to 1,000 images."""


def read_parquet(entry: DatasetEntry, folder: Path) -> Contents:
    """Read the parts of a repository whose files are in ``folder``, at the paths that they have in the repository.

    Raises ``UserError`` for missing or unreadable shards, for missing columns, and for classes that are named neither
    by the files nor by the catalog entry.
    """
    route = entry.route
    assert isinstance(route, HuggingFaceRoute)
    paths = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet"))
    adding, shards = entry.domain == "own", {}
    for part in route.splits:
        try:
            shards[part] = Shards(folder, shards_of(paths, route, part), **route.columns)
            shards[part].check_labels(folder)
        except UserError as error:
            where, hint = error.where or str(folder), (adding and error.hint) or refetch_hint(entry)
            raise UserError(error.what, where=where, hint=hint) from None
    names = _class_names(entry, list(shards.values()), folder)
    return names, {part: found.part(names, adding) for part, found in shards.items()}


def shards_of(paths: Iterable[str], route: HuggingFaceRoute, part: PartName) -> list[str]:
    """Return the parquet files of one part, in order. ``paths``: all files of the repository.

    The files of the split ``train`` are called ``data/train-00000-of-00004.parquet`` or ``train.parquet``. A repository
    with several configurations has a folder for each, which holds these files. On the branch ``refs/convert/parquet``,
    which Hugging Face writes, a file is called ``<config>/train/0000.parquet``. If the route has a pattern in
    ``files``, only the pattern counts.

    Raises ``UserError`` if no file is found, if a numbered shard is missing, or if there are shards of two uploads.
    """
    given = route.files.get(part)
    split = route.splits[part]
    config = f"(.*/)?{re.escape(route.config)}/(.*/)?" if route.config else "(.*/)?"
    pattern = rf"{config}{re.escape(split)}(-\d+-of-\d+(-[0-9a-f]+)?|/\d+)?\.parquet"
    found = sorted(path for path in paths if (fnmatchcase(path, given) if given else re.fullmatch(pattern, path)))
    if not found:
        raise UserError(f"there is no parquet file of the split {split!r}" + (f" ({given})" if given else ""))
    hint = "fetch the missing files; or name the configuration, `config`, or a pattern of the right files, `files`"
    refuse_partial_sets(found, hint, together=not given)  # a pattern may mean several sets
    return found


def refuse_partial_sets(files: Sequence[str], hint: str = "", *, together: bool = False) -> None:
    """Raise ``UserError`` unless the files that are numbered as ``train-00000-of-00004.parquet`` make whole sets.

    A file that is missing would be left out without a word, and images of two uploads would count twice.

    ``hint``: by default, how to give one whole set. ``together``: whether the files must make one set, also if their
    names differ before the number.
    """
    numbered = (match for match in map(SHARD.search, files) if match)
    for own in grouped(numbered, lambda match: "" if together else match.string[: match.start()]).values():
        given = sorted(int(match["number"]) for match in own)
        for match in own:
            number, count = match["number"], int(match["count"])
            if given != [*range(count)]:
                what = f"{match.string} belongs to a set of {pluralize(count, 'file')}; numbers of the files given: "
                whole = f"write {{{'0' * len(number)}..{count - 1:0{len(number)}}}} for {number} to give one whole set"
                hint = hint or (whole if count > 1 else "give this file alone")
                raise UserError(what + listed([*map(str, given)], SHOWN), hint=hint)


def _class_names(entry: DatasetEntry, parts: Sequence[Shards], folder: Path) -> list[str]:
    """Return the class names in label order.

    They are the names in the files' metadata. Without these, they are the sorted labels if the labels are texts, and
    ``0``, ``1``, ... if the labels are numbers.
    """
    names, *others = {names for part in parts for names in part.named}
    if others:
        what = "the files do not give the same class names in the same order"
        raise UserError(what, where=str(folder), hint=refetch_hint(entry))
    if names is not None:
        return list(names)
    values = sorted({value for part in parts for value in part.values})
    if any(isinstance(value, str) for value in values):
        return [str(value) for value in values]
    return numbered_classes(entry, values, folder)


class Shards:
    """The parquet files of one part.

    Several threads may read from it. A lock lets one thread read at a time, and the threads decode in parallel.
    """

    def __init__(self, folder: Path, paths: Sequence[str], image: str = "image", label: str = "label") -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.paths, self.image = paths, image
        self.files: list[pq.ParquetFile] = []
        self.values: list[Any] = []
        self.named = set[tuple[str, ...] | None]()  # the class names in each file's metadata
        for path in paths:
            place = str(folder / path)
            with explained(pa.ArrowException, OSError, what="cannot be read as parquet", where=place):
                file = pq.ParquetFile(folder / path, memory_map=True)
                if absent := {image, label} - set(file.schema_arrow.names):
                    what = f"has no column {min(absent)!r}, only {', '.join(file.schema_arrow.names)}"
                    raise UserError(what, where=place)
                read = file.read(columns=[label], use_threads=False).column(label).to_pylist()
                self.values += [int(v) if isinstance(v, float) and v.is_integer() else v for v in read]
            self.files.append(file)
            self.named.add(names_in(file.schema_arrow, label))
        self.groups = [(file, group) for file in self.files for group in range(file.num_row_groups)]
        rows = (file.metadata.row_group(group).num_rows for file, group in self.groups)
        self.starts = [0, *accumulate(rows)]
        self.file_starts = [0, *accumulate(file.metadata.num_rows for file in self.files)]
        self.kept: dict[int, pa.ChunkedArray[Any]] = {}
        self.lock = threading.Lock()

    def check_labels(self, folder: Path) -> None:
        """Raise ``UserError`` for missing labels, and for labels that are neither texts nor whole numbers."""
        if missing := sum(value is None or value in ("", []) or value != value for value in self.values):
            hint = "rows without a label cannot be used: name another column (--column label=NAME) or another split"
            what = f"{missing} images have no label in {pluralize(len(self.paths), 'file')}"
            raise UserError(what, where=str(folder), hint=hint)
        if other := [row for row, value in enumerate(self.values) if not isinstance(value, str | int)]:
            what = f"the label {shorten(repr(self.values[other[0]]))} is neither a text nor a whole number"
            raise UserError(what, where=self.origin(other[0]), hint="name another column: --column label=NAME")

    def part(self, names: Sequence[str], adding: bool) -> Part:
        """Return the labelled images. Raises ``UserError`` for a label that is not in ``names``.

        ``adding``: whether ``data add`` reads them, so that the user can name another split.
        """
        number = {name: label for label, name in enumerate(names)}
        labels = [number.get(value, -1) if isinstance(value, str) else int(value) for value in self.values]
        if beyond := [row for row, label in enumerate(labels) if not 0 <= label < len(names)]:
            what = f"the label {self.values[beyond[0]]!r} is outside 0 to {len(names) - 1}"
            hint = "-1 often means that an image has no label; name a split with labels: hf:OWNER/NAME@SPLIT"
            raise UserError(what, where=self.origin(beyond[0]), hint=hint * (adding and self.values[beyond[0]] == -1))
        return make_part(labels, self.content, self.origin)

    def content(self, index: int) -> io.BytesIO:
        """Return the encoded image of a row. Raises ``ValueError`` for a row without an image."""
        group = bisect(self.starts, index) - 1
        value = self._column(group)[index - self.starts[group]].as_py()
        if isinstance(value, list) and len(value) == 1:
            (value,) = value
        encoded = value.get("bytes") if isinstance(value, dict) else value
        if not encoded or isinstance(encoded, list):
            held = f"{len(encoded)} images, not one" if encoded else "no image"
            if isinstance(value, dict) and value.get("path"):
                held += f", only the path {value['path']}; give a table with a column of paths, or one with the images"
            raise ValueError(f"the row holds {held}")
        return io.BytesIO(encoded)

    def origin(self, index: int) -> str:
        """Return the file and the row of an image."""
        file = bisect(self.file_starts, index) - 1
        return f"{self.paths[file]}[{index - self.file_starts[file]}]"

    def _column(self, group: int) -> pa.ChunkedArray[Any]:
        """Return the encoded images of one row group, from the cache or from the file.

        Raises ``OSError`` for a damaged row group, as readers do for a damaged image file.
        """
        import pyarrow as pa

        file, number = self.groups[group]
        with self.lock:
            if group not in self.kept:
                try:
                    rows = file.read_row_group(number, columns=[self.image], use_threads=False)
                except pa.ArrowException as error:
                    raise OSError(f"row group {number} cannot be read: {error}") from error
                if len(self.kept) == KEPT_GROUPS:
                    del self.kept[next(iter(self.kept))]
                self.kept[group] = rows.column(self.image)
            return self.kept[group]


def features_in(schema: pa.Schema) -> dict[str, Any]:
    """Return Hugging Face's description of the columns of a file; empty if the file has none."""
    metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    return dict(metadata.get("info", {}).get("features", {}))


def names_in(schema: pa.Schema, column: str) -> tuple[str, ...] | None:
    """Return a column's class names in Hugging Face's metadata, in label order; ``None`` if the metadata have none."""
    names = features_in(schema).get(column, {}).get("names")
    return tuple(names) if names else None
