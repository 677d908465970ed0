"""Read a table that lists images and their labels: CSV or parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import ManifestRoute, is_inside
from orchestrator.datasets.part import RouteContents, file_part
from orchestrator.util.errors import UserError
from orchestrator.util.units import listed

SHOWN = 10


def read_manifest(entry: DatasetEntry, folder: Path) -> RouteContents:
    """Read the images of a table: its own parts under the recipe ``official``, else one part ``all``.

    Labels are texts. Classes are numbered in the order of their names; names that are all integers sort as numbers.

    Raises:
        UserError: the table cannot be read or lacks a column, a row is empty, a path leaves the folder or is listed
            twice, a file is missing, a split is unknown, or there is a split column where a recipe splits.
    """
    route = entry.route
    assert isinstance(route, ManifestRoute)
    table = folder / route.file
    columns = read_table(table)
    paths, labels = paths_and_labels(columns, route.columns, table)
    splits = _splits(entry, columns.get(route.columns.get("split", "split")), len(paths), table)
    _check_paths(paths, folder, table)
    names = sorted(set(labels), key=(lambda name: (int(name), name)) if all(map(str.isdecimal, labels)) else None)
    label_of = {name: label for label, name in enumerate(names)}
    parts = {}
    for split in ("train", "test") if entry.splits.recipe == "official" else ("all",):
        rows = [row for row, given in enumerate(splits) if given == split]
        if not rows and (split != "train" or entry.has_training_images):
            raise UserError(f"lists no images of the split {split!r}", where=str(table))
        parts[split] = file_part([folder / paths[row] for row in rows], [label_of[labels[row]] for row in rows], folder)
    return names, parts


def read_table(path: Path) -> Mapping[str, list[str]]:
    """Map column names to texts, of a CSV file with a header line or of a parquet file.

    Raises ``UserError`` when it cannot be read.
    """
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet as pq

            columns = pq.read_table(path).to_pydict().items()
            return {name: ["" if text is None else str(text).strip() for text in texts] for name, texts in columns}
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            rows, names = list(reader), reader.fieldnames or ()
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"cannot be read as a table: {error}", where=str(path)) from None
    uneven = next((number for number, row in enumerate(rows) if None in row or None in row.values()), None)
    if uneven is not None:
        raise UserError(f"row {uneven + 1} has not as many fields as the header", where=str(path))
    return {name: [row[name].strip() for row in rows] for name in names}


def paths_and_labels(
    columns: Mapping[str, list[str]], names: Mapping[Any, str], table: Path
) -> tuple[list[str], list[str]]:
    """Return the path and the label of each image. ``names``: the names of the columns ``path`` and ``label``.

    Raises ``UserError`` for a missing column, a table without rows and an empty field.
    """
    for key in ("path", "label"):
        name = names.get(key, key)
        if name not in columns:
            raise UserError(
                f"has no column {name!r}, only {', '.join(columns) or 'an empty first line'}",
                where=str(table),
                hint=f"write each image's {key} in a column of that name, with commas between columns; a path is "
                "relative to the table's folder",
            )
        if not columns[name]:
            raise UserError("lists no images", where=str(table))
        if "" in columns[name]:
            row = columns[name].index("") + 1
            raise UserError(f"row {row} has no {key}", where=str(table), hint=f"fill in the column {name!r}")
    return columns[names.get("path", "path")], columns[names.get("label", "label")]


def _splits(entry: DatasetEntry, given: Sequence[str] | None, count: int, table: Path) -> Sequence[str]:
    """Return the part of each row."""
    official = entry.splits.recipe == "official"
    if given is None and official:
        raise UserError("has no column for the split", where=str(table),
                        hint="add one that says train or test, or name another split recipe")  # fmt: skip
    if given is None:
        return ["all"] * count
    if not official:
        raise UserError(f"has a column for the split, and the entry's recipe {entry.splits.recipe} would split again",
                        where=str(table), hint="take 'splits: {recipe: official}', or drop the column")  # fmt: skip
    unknown = next((row for row, split in enumerate(given) if split not in ("train", "test")), None)
    if unknown is not None:
        raise UserError(f"row {unknown + 1}: the split {given[unknown]!r} is neither train nor test", where=str(table))
    return given


def _check_paths(paths: Sequence[str], folder: Path, table: Path) -> None:
    seen: set[str] = set()
    missing = []
    for row, path in enumerate(paths, start=1):
        if not is_inside(path):
            raise UserError(
                f"row {row}: the path {path!r} does not stay inside the folder",
                where=str(table),
                hint="write it relative to the table's folder, with / between its parts",
            )
        if path in seen:
            raise UserError(f"row {row}: {path} is listed twice", where=str(table))
        seen.add(path)
        if not (folder / path).is_file():
            missing.append(path)
    if missing:
        lines = listed(missing, SHOWN, "\n  ")
        raise UserError(f"{len(missing)} of {len(paths)} images are not there:\n  {lines}", where=str(table))
