"""The files of a bundle that are computed from its results: rows, tables, verdicts. Compares them with stored ones."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from orchestrator.analysis.rows import row_list
from orchestrator.core.cell import Cell
from orchestrator.core.text_limit import TextLimit
from orchestrator.report.analysis.study import study_of
from orchestrator.report.registry import panel_tables, study_tables
from orchestrator.report.tables.formats import FILE_FORMATS
from orchestrator.sharing.formats import to_csv
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result
from orchestrator.util.identity import slug

TOLERANCE = 1e-9
"""Relative difference up to which two numbers count as equal: another processor may round a sum otherwise."""


@dataclass(frozen=True)
class Measured:
    """What tables and verdicts are computed from.

    Attributes:
        cells: the grid's cells, in its order.
        labels: cell id -> the name of its method in tables.
        predictions: by cell id, of the results that have some.
        text_limits: the datasets whose class words the text tower cannot tell apart.
        smallest_difference: the smallest difference that matters, in points.
    """

    cells: Sequence[Cell]
    labels: Mapping[str, str]
    results: Sequence[Result]
    predictions: Mapping[str, Sequence[StoredPredictions]]
    text_limits: Sequence[TextLimit]
    smallest_difference: float


def derived_files(measured: Measured) -> dict[str, bytes]:
    """``rows.csv``, ``verdict.json`` and the report's tables, ``tables/*.csv``, by name.

    Left out are the tables that need more than results: of failures, of source models, and of the paper's numbers.
    """
    study = study_of(
        results=measured.results,
        failures=(),
        planned=measured.cells,
        label_of=lambda cell: measured.labels[cell.id],
        read_predictions=lambda results: {
            result.cell.id: measured.predictions[result.cell.id]
            for result in results
            if result.cell.id in measured.predictions
        },
        text_limits=measured.text_limits,
        smallest_difference=measured.smallest_difference,
    )
    tables = [table for panel in study.panels for own in panel_tables(study, panel).values() for table in own]
    tables += [table for own in study_tables(study).values() for table in own]
    return {
        "rows.csv": to_csv(row_list(measured.results, measured.labels)),
        "verdict.json": json.dumps(study.verdict_records(), indent=1, ensure_ascii=False).encode() + b"\n",
        **{f"tables/{slug(table.name)}.csv": FILE_FORMATS["csv"](table).encode() for table in tables},
    }


def first_difference(name: str, stored: bytes, computed: bytes) -> str:
    """Where a stored file differs from the computed one, in one line; empty if they say the same.

    Numbers may differ by :data:`TOLERANCE`.
    """
    if stored == computed:
        return ""
    try:
        if name.endswith(".json"):
            return _json_difference("", json.loads(stored), json.loads(computed))
        return _csv_difference(stored.decode(), computed.decode())
    except ValueError as error:
        return f"it cannot be read: {error}"


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
        return f"{path or 'it'}: {_short(stored)} is written, {_short(computed)} is computed"
    return next((found for pair in pairs if (found := _json_difference(*pair))), "")


def _equal(stored: Any, computed: Any) -> bool:
    """Whether two values are equal, or two numbers nearly so. Numbers of a CSV file are texts."""
    if stored == computed:
        return True
    try:
        return math.isclose(float(stored), float(computed), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (TypeError, ValueError):
        return False


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
