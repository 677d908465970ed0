"""Checks a bundle: its checksums, its records, and whether its rows and verdicts follow from its results."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from orchestrator.artifacts.head import EqualClasses
from orchestrator.core.cell import Cell
from orchestrator.sharing.bundle import CELLS, TEXT_LIMITS, derived_files, read_cells
from orchestrator.sharing.bundle_file import MANIFEST, BundleFile, Problem, read_bundle
from orchestrator.store.predictions import StoredPredictions, checked_predictions
from orchestrator.store.results import Result
from orchestrator.util.errors import shorten

TOLERANCE = 1e-9
"""Relative difference up to which two numbers count as equal: another processor may round a sum otherwise."""


@dataclass(frozen=True)
class Verification:
    """What a check of a bundle found.

    Attributes:
        version: of the project that wrote the bundle; tables of another version may be laid out otherwise.
        computed: the files that were computed again from the results; none if the results themselves are not intact.
    """

    grid: str
    version: str
    cells: int
    results: int
    computed: tuple[str, ...]
    problems: tuple[Problem, ...]


def verify_bundle(path: Path) -> Verification:
    """Check a bundle. Raises ``UserError`` if there is no such file."""
    bundle = read_bundle(path)
    cells, results, predictions, problems = read_records(bundle)
    computed: dict[str, bytes] = {}
    if not problems:
        smallest = bundle.manifest.get("smallest_difference", 0)
        if type(smallest) not in (int, float) or not smallest > 0:
            problems.append(Problem(MANIFEST, "smallest_difference is not a number above zero"))
        try:
            limits = TypeAdapter(tuple[EqualClasses, ...]).validate_json(bundle.files.get(TEXT_LIMITS, b""))
        except ValueError as error:
            problems.append(Problem(TEXT_LIMITS, str(error) if TEXT_LIMITS in bundle.files else "it is missing"))
    if not problems:
        labels = {cell_id: label for cell_id, (_, label) in cells.items()}
        measured = [cell for cell, _ in cells.values()]
        computed = derived_files(measured, labels, results, predictions, limits, float(smallest))
        problems += _differences(bundle.files, computed)
    grid, project = str(bundle.manifest.get("grid", "?")), bundle.manifest.get("project")
    version = str(project.get("version", "?")) if isinstance(project, dict) else "?"
    return Verification(grid, version, len(cells), len(results), tuple(computed), tuple(problems))


def read_records(
    bundle: BundleFile,
) -> tuple[dict[str, tuple[Cell, str]], list[Result], dict[str, tuple[StoredPredictions, ...]], list[Problem]]:
    """Return the records of a bundle, and everything that is wrong with its files and records.

    Returns:
        Cell id -> (cell, label); the results in the order of the cells; cell id -> predictions; the problems.
    """
    cells: dict[str, tuple[Cell, str]] = {}
    results, predictions, problems = {}, {}, list(bundle.problems)
    if CELLS in bundle.files:
        try:
            cells = read_cells(bundle.files[CELLS])
        except ValueError as error:
            problems.append(Problem(CELLS, str(error)))
    elif not problems:
        problems.append(Problem(CELLS, "it is missing"))
    for file, content in bundle.files.items():
        if not cells or not file.startswith("results/") or not file.endswith(".json"):
            continue
        cell_id = file.removeprefix("results/").removesuffix(".json")
        try:
            result = Result.of_cell(cell_id, content)
            if cell_id not in cells or result.cell != cells[cell_id][0]:
                raise ValueError(f"{CELLS} has no such cell")
            if result.predictions is not None:
                file = f"results/{cell_id}.npz"
                predictions[cell_id] = checked_predictions(bundle.files.get(file), result)
            results[cell_id] = result
        except ValueError as error:
            problems.append(Problem(file, str(error)))
    return cells, [results[cell_id] for cell_id in cells if cell_id in results], predictions, problems


def _differences(stored: Mapping[str, bytes], computed: Mapping[str, bytes]) -> Iterator[Problem]:
    """Where the stored tables and verdicts are not the computed ones. Numbers may differ by :data:`TOLERANCE`."""
    for name, content in computed.items():
        if name not in stored:
            yield Problem(name, "it is missing")
        elif stored[name] != content and (difference := _first_difference(name, stored[name], content)):
            yield Problem(name, difference)
    for name in stored:
        if name.startswith("tables/") and name not in computed:
            yield Problem(name, "the results give no such table")


def _first_difference(name: str, stored: bytes, computed: bytes) -> str:
    """Where a stored file differs from the computed one, in one line; empty if they say the same."""
    try:
        if name.endswith(".json"):
            return _json_difference("", json.loads(stored), json.loads(computed))
        return _csv_difference(stored.decode(), computed.decode())
    except ValueError as error:
        return f"it cannot be read: {error}"


_REWORDED = (
    (r"trains no numbers", "has no trainable parameters"),
    (r"trains (\S+) times fewer numbers", r"has \1 times fewer trainable parameters"),
)
"""What recommendations in bundles of earlier versions said, and what they say now."""


def _csv_difference(stored: str, computed: str) -> str:
    columns: list[str] = []
    pairs = zip_longest(csv.reader(io.StringIO(stored)), csv.reader(io.StringIO(computed)))
    for number, (left, right) in enumerate(pairs, start=1):
        if left is None or right is None:
            return f"line {number} is {'missing' if left is None else 'one too many'}"
        for column, (value, expected) in enumerate(zip_longest(left, right)):
            if not _equal(value, expected):
                heading = columns[column] if column < len(columns) else f"column {column + 1}"
                return f"line {number}, {heading}: {value} is written, {expected} is computed"
        columns = columns or right
    return ""


def _json_difference(path: str, stored: Any, computed: Any) -> str:
    if isinstance(stored, dict) and isinstance(computed, dict) and stored.keys() == computed.keys():
        pairs = [(f"{path}.{key}" if path else key, stored[key], computed[key]) for key in computed]
    elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        pairs = [(f"{path}[{index}]", *both) for index, both in enumerate(zip(stored, computed, strict=True))]
    elif _equal(stored, computed):
        return ""
    else:
        written, expected = (shorten(json.dumps(value, ensure_ascii=False), 80) for value in (stored, computed))
        return f"{path or 'it'}: {written} is written, {expected} is computed"
    return next((found for pair in pairs if (found := _json_difference(*pair))), "")


def _equal(stored: Any, computed: Any) -> bool:
    """Whether two values are equal, or two numbers nearly so. Numbers of a CSV file are texts."""
    if stored == computed:
        return True
    if isinstance(stored, str) and isinstance(computed, str):
        for pattern, words in _REWORDED:
            stored = re.sub(pattern, words, stored)
        if stored == computed:
            return True
    try:
        return math.isclose(float(stored), float(computed), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (TypeError, ValueError):
        return False
