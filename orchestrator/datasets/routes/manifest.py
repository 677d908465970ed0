"""Read a table that lists images and their labels: CSV, JSON, parquet, or the samples in tar files."""

import csv
import json
import os
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bolt.clip.image_files import ImageSource
from bolt.image_folders import is_image, iterate_images, part_of, why_no_classes
from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import ManifestRoute, files_of
from orchestrator.datasets.part import Contents, Part, file_part, make_part
from orchestrator.datasets.routes.parquet import Shards, names_in, refuse_partial_sets
from orchestrator.datasets.routes.table_files import find_files, matched
from orchestrator.datasets.routes.tar_shards import folder_of, part_in, parts_by_name, read_shards
from orchestrator.datasets.text_tables import read_rows
from orchestrator.util.errors import UserError, explained
from orchestrator.util.units import listed

SHOWN = 10

_BINARY = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_WHOLE = re.compile(r"\d{1,9}(\.0)?")
_MARKS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}


class Table(NamedTuple):
    """A table whose values are texts.

    Attributes:
        columns: name of a column -> its values.
        notes: remarks on how the table was read.
        readers: path -> function that returns the image, if the images are in tar files or in the table itself.
    """

    columns: Mapping[str, list[str]]
    notes: list[str]
    readers: Mapping[str, Callable[[], ImageSource]] = {}


def read_manifest(entry: DatasetEntry, folder: Path) -> Contents:
    """Read the images that a table lists.

    The table's column for the split divides the images into parts. Without this column, they are one part.

    Labels are texts. Classes are numbered in the order of their names. If all names are integers, they are sorted as
    numbers.

    Raises:
        UserError: the table cannot be read or lacks a column, a row is empty, a path leaves the folder or is listed
            twice, a file is missing, or a split is unknown or has no images.
    """
    route = entry.route
    assert isinstance(route, ManifestRoute)
    table = folder / route.file
    columns, _, readers = read_table(table)
    paths, labels = paths_and_labels(columns, route.columns, table)
    given = columns.get(route.columns.get("split", "split"))
    splits = _splits(given, table) if given else ["all"] * len(paths)
    files = paths if readers else find_files(paths, labels, folder, table, splits)
    used = {label for label, split in zip(labels, splits, strict=True) if split != "val"}
    names = sorted(used, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, used)) else None)
    label_of = {name: label for label, name in enumerate(names)}

    def part(split: str) -> Part:
        rows = [row for row, given in enumerate(splits) if given == split]
        if not rows and (split != "train" or entry.has_training_images):
            hint = "give images of both parts, or remove the column of the split for an 80/20 split"
            raise UserError(f"lists no images of the split {split!r}", where=str(table), hint=hint)
        chosen, numbers = [files[row] for row in rows], [label_of[labels[row]] for row in rows]
        if readers:
            return make_part(numbers, lambda i: readers[chosen[i]](), chosen.__getitem__)
        return file_part([folder / file for file in chosen], numbers, folder)

    return names, {split: part(split) for split in (("train", "test") if given else ("all",))}


def read_table(path: Path) -> Table:
    """Read a CSV file with a header line, a JSON or parquet file, or tar files.

    A pattern such as ``{train,test}.csv`` means several files with the same columns, which are joined. Without a column
    ``split``, the names of the files or of their folders state the parts.

    Raises ``UserError`` if a file cannot be read, if a numbered shard is missing, or if shards of two sets are given.
    """
    if path.suffix.lower() == ".tar":
        return Table(*read_shards(path))
    files = files_of(path)
    refuse_partial_sets([str(file) for file in files if file.suffix.lower() == ".parquet"])
    if len(files) == 1:
        return _read_file(files[0])
    root = folder_of(path)
    tables = [_from_root(_read_file(file), file.parent, root) for file in files]
    first = tables[0]
    for file, table in zip(files, tables, strict=True):
        if (table.columns.keys(), not table.readers) != (first.columns.keys(), not first.readers):
            what = f"has the columns {listed([*table.columns], SHOWN)}, but {files[0].name} has "
            what += listed([*first.columns], SHOWN)
            raise UserError(what, where=str(file), hint="give the tables the same columns")
    columns = {name: [text for table in tables for text in table.columns[name]] for name in first.columns}
    notes = list(dict.fromkeys(note for table in tables for note in table.notes))
    if "split" not in columns and columns:
        sizes = [len(next(iter(table.columns.values()))) for table in tables]
        names = [file.relative_to(root).as_posix() for file in files]
        columns["split"] = [part_in(name) for name, size in zip(names, sizes, strict=True) for _ in range(size)]
        columns = parts_by_name(columns, notes, path)
    return Table(columns, notes, {image: reader for table in tables for image, reader in table.readers.items()})


def _from_root(table: Table, folder: Path, root: Path) -> Table:
    """Return the table with its paths relative to ``root`` instead of ``folder``, which is below ``root``."""
    if folder == root:
        return table
    moved = partial(posixpath.join, folder.relative_to(root).as_posix())

    def is_path(text: str) -> bool:
        return text in table.readers or (is_image(Path(text)) and os.path.isfile(folder / text.replace("\\", "/")))

    def from_root(texts: list[str]) -> list[str]:
        if any(map(is_path, texts)):
            return [*map(moved, texts)]
        with suppress(UserError):  # names of files further below, as a single table may have them
            if texts and all(is_image(Path(text)) for text in texts):
                return [*map(moved, matched([text.replace("\\", "/") for text in texts], folder))]
        return texts

    columns = {name: from_root(texts) for name, texts in table.columns.items()}
    return Table(columns, table.notes, {moved(path): reader for path, reader in table.readers.items()})


def _read_file(path: Path) -> Table:
    errors = (OSError, ValueError, RecursionError, csv.Error)
    with explained(*errors, what="cannot be read as a table", where=str(path)):
        if path.suffix.lower() == ".parquet":
            return _read_parquet_table(path)
        if path.suffix.lower() in (".json", ".jsonl"):
            return _read_json_table(path)
        rows, notes = read_rows(path)
    names, *rows = rows or [[]]
    if image := next((name for name in names if is_image(Path(name))), None):
        what = f"the first line has the image {image}, not names of columns"
        raise UserError(what, where=str(path), hint="add a first line with their names, such as path,label")
    if twice := [name for name in names if name and names.count(name) > 1]:
        raise UserError(f"has two columns {twice[0]!r}", where=str(path), hint="rename one of them")
    uneven = next((number for number, row in enumerate(rows, start=1) if len(row) != len(names)), None)
    if uneven is not None:
        what = f"row {uneven} and the header have different numbers of fields"
        raise UserError(what, where=str(path), hint="the first line must be the header, with the columns' names")
    return Table({name: [row[index] for row in rows] for index, name in enumerate(names)}, notes)


def _read_json_table(path: Path) -> Table:
    """Read a list of objects, or one object a line. Each object is a row.

    A split file of CoOp is read, too: for each part, it has a list of [path, number, class name]. So is a mapping from
    images to labels. FiftyOne writes it under ``labels``, with positions in the list ``classes`` as labels.
    """
    text = path.read_text(encoding="utf-8-sig")
    lines = (line for line in text.split("\n") if line.strip())
    try:
        rows = json.loads(text)
    except ValueError:
        if text.lstrip().startswith("["):  # the error says where the list is damaged
            raise
        rows = [json.loads(line) for line in lines]
    if isinstance(rows, dict) and path.suffix.lower() == ".jsonl":
        rows = [rows]
    parts = rows.items() if isinstance(rows, dict) else ()
    given = rows["labels"] if isinstance(rows, dict) and rows.keys() == {"classes", "labels"} else rows
    if given and isinstance(given, dict) and all(isinstance(label, str | int) for label in given.values()):
        classes = dict(enumerate(rows["classes"] if isinstance(rows.get("classes"), list) else ()))
        if given is not rows or all(is_image(Path(image)) for image in given):
            rows = [{"path": image, "label": classes.get(label, label)} for image, label in given.items()]
    listed_in = [(row, part) for part, given in parts if isinstance(given, list) for row in given]
    if listed_in and all(isinstance(row, list) and len(row) == 3 for row, _ in listed_in):
        rows = [{"path": row[0], "label": row[2], "split": part} for row, part in listed_in]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("it needs a list of objects, one for each image, or one object a line")
    names = dict.fromkeys(name for row in rows for name in row)
    return Table({name: [_text(row.get(name)) for row in rows] for name in names}, [])


def _read_parquet_table(path: Path) -> Table:
    """Read a parquet file that has the paths of images, or one column with the encoded images themselves.

    If it has both, the paths count only if they name image files that are there.

    With encoded images, the numbers in a column are replaced by the class names that the file gives for them.
    """
    import pyarrow.parquet as pq

    schema = pq.read_schema(path)
    encoded = [field.name for field in schema if "binary" in str(field.type)]  # bytes, or a structure with bytes
    texts = [field.name for field in schema if not field.type.num_fields and field.name not in encoded]
    values = pq.read_table(path, columns=texts).to_pydict()
    named = {Path(_text(value).replace("\\", "/")).name for column in values.values() for value in column[:1]}
    with_paths = any(is_image(Path(name)) for name in named)
    with_paths &= not encoded or any(file.name in named for file in iterate_images(path.parent))
    if not with_paths and (len(encoded) > 1 or not texts):
        has = listed([f"{field.name} ({field.type})" for field in schema], SHOWN)
        raise ValueError(f"it needs one column of encoded images and one of labels, and has {has}")
    if with_paths or not encoded:
        return Table({name: [_text(value) for value in column] for name, column in values.items()}, [])
    shard = Shards(path.parent, [path.name], encoded[0], texts[0])
    columns = {}
    for name, column in values.items():
        classes = dict(enumerate(names_in(schema, name) or ()))
        if classes and (strange := next((value for value in column if value not in classes), None)) is not None:
            raise ValueError(f"the {name} {strange} is none of the file's {len(classes)} classes (-1: often no label)")
        columns[name] = [_text(classes.get(value, value)) for value in column]
    columns["path"] = [shard.origin(row) for row in range(len(shard.values))]
    return Table(columns, [], {image: partial(shard.content, row) for row, image in enumerate(columns["path"])})


def _text(value: Any) -> str:
    return "" if value is None or value != value else str(value).strip()  # NaN is no label


def paths_and_labels(
    columns: Mapping[str, list[str]], names: Mapping[Any, str], table: Path
) -> tuple[list[str], list[str]]:
    """Return the path and the label of each image.

    ``names`` maps ``path`` and ``label`` to the names of their columns. If it lacks one of these two keys, the column
    has the same name as the key. There is one exception: ``names`` lacks ``label`` and the table has a column of 0 and
    1 for each class (see :func:`marked_classes`). Then the label of a row is the name of the column in which the row
    has a 1.

    Raises ``UserError`` for a missing column, a table without rows, an empty field and a label with control characters.
    """
    columns = {**columns}
    if "label" not in names and (marks := marked_classes(columns)):
        rows = range(len(columns[marks[0]]))
        columns["label"] = [next(name for name in marks if _MARKS[columns[name][row].casefold()]) for row in rows]
    for key in ("path", "label"):
        if (name := names.get(key, key)) not in columns:
            distinct = {column: len(set(values)) for column, values in columns.items() if column not in names.values()}
            counts = {count: column for column, count in reversed(distinct.items()) if column and count > 1}
            column = counts[min(counts) if key == "label" else max(counts)] if counts else "NAME"
            option = shlex.join(["--column", f"{key}={column}"])
            hint = f"say which column has each image's {key}, such as {option}; the first line names the columns"
            signs = {*_MARKS, "", "-1", "-1.0"}
            marks = [name for name, values in columns.items() if {*map(str.casefold, values)} <= signs]
            if key == "label" and len(marks) > 1:
                hint = f"if {listed(marks, SHOWN)} are classes, keep only the rows with exactly one 1; otherwise say "
                hint += "which column has each image's label: --column label=NAME"
            if any(column in values for column, values in columns.items()):
                hint = "add a first line that names the columns, such as path,label"
            if key == "path" and any(name.casefold().startswith("pixel") for name in columns):
                hint = "the table seems to hold pixels: write them as image files, in a folder for each class"
            if table.suffix == ".tar":
                hint = "each sample needs a .cls, .txt or .json file; if the tar file has class folders, unpack it"
            what = f"has no column {name!r}, only {listed([*columns], SHOWN) or 'an empty first line'}"
            raise UserError(what, where=str(table), hint=hint)
        if not columns[name]:
            raise UserError("lists no images", where=str(table))
        if "" in columns[name]:
            row = columns[name].index("") + 1
            raise UserError(f"row {row} has no {key}", where=str(table), hint=f"fill in the column {name!r}")
    paths, labels = columns[names.get("path", "path")], columns[names.get("label", "label")]
    whole = all(map(_WHOLE.fullmatch, labels))
    if whole and len({*(plain := [label.removesuffix(".0") for label in labels])}) < len({*labels}):
        labels = plain  # 1.0 beside 1, of a column of pandas that lacked a value
    if binary := next(filter(_BINARY.search, labels), None):
        what = f"the label {binary!r} holds control characters"
        raise UserError(what, where=str(table), hint="write labels as text")
    return paths, labels


def marked_classes(columns: Mapping[str, list[str]]) -> list[str]:
    """Return the names of the class columns, if a table has a column of 0 and 1 for each class.

    Every row must have a single 1. ``False`` and ``True`` count as 0 and 1. For any other table, return no names.
    """
    marks = [name for name, values in columns.items() if values and {text.casefold() for text in values} <= {*_MARKS}]
    rows = zip(*(columns[name] for name in marks), strict=True)
    counts = {sum(_MARKS[text.casefold()] for text in row) for row in rows}
    return marks if len(marks) > 1 and counts == {1} and not why_no_classes(marks) else []


def _splits(given: Sequence[str], table: Path) -> Sequence[str | None]:
    """Return the part of each row, given the values of the column for the split: ``train``, ``test`` or ``val``."""
    parts = [part_of(text) for text in given]
    if None in parts:
        row = parts.index(None)
        what = f"row {row + 1}: the split {given[row]!r} is neither train nor test"
        raise UserError(what, where=str(table), hint="write train, test or val; rows of val are not used")
    return parts
