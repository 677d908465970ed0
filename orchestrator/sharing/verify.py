"""Checks a bundle: its checksums, its records, and whether its rows, tables and verdicts follow from its results."""

import csv
import io
import json
import math
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bolt.methods import METHODS
from orchestrator.analysis.verdict import RULE
from orchestrator.sharing.bundle import Bundle, read_bundle
from orchestrator.util.errors import UserError, short_repr

TOLERANCE = 1e-9
"""Largest relative or absolute difference of numbers that count as equal: processors may round a sum differently."""

VERDICT = "verdict.json"
_OF_RULE = (VERDICT, "tables/verdict_", "tables/missing.", "tables/cells_without_result.")
"""Beginnings of names of files that earlier versions wrote by other rules: verdicts, and lists of missing cells, which
included failed cells."""


def verify_bundle(path: Path) -> tuple[Bundle, list[str]]:
    """Check a bundle. Raises ``UserError`` if the file cannot be read, or if it needs a method that is not installed.

    Returns the bundle with all of its problems, and the names of the files that were computed again from its results.
    No file is computed if the bundle is not intact. Verdicts by an earlier rule than today's are not computed either.
    A bundle with such verdicts may lack tables and columns that were added later.
    """
    bundle = read_bundle(path)
    if bundle.problems:
        return bundle, []
    if absent := sorted({cell.method.name for cell, _ in bundle.cells.values()} - METHODS.keys()):
        what = f"its tables cannot be computed again, because methods are not installed: {', '.join(absent)}"
        raise UserError(what, where=str(path), hint="install the packages that add these methods")
    computed, earlier = bundle.derived_files(), _by_earlier_rule(bundle.files.get(VERDICT, b""))
    computed = {name: content for name, content in computed.items() if not (earlier and name.startswith(_OF_RULE))}
    for name in {**computed, **bundle.files}:
        if earlier and name.startswith(_OF_RULE):
            continue
        if name not in bundle.files:
            if not earlier:
                bundle.problems[name] = "it is missing"
        elif name in computed and (difference := first_difference(name, bundle.files[name], computed[name], earlier)):
            bundle.problems[name] = difference
        elif name.startswith("tables/") and name not in computed:
            bundle.problems[name] = "no such table follows from the results"
    return bundle, [name for name in computed if name in bundle.files]


def _by_earlier_rule(verdicts: bytes) -> bool:
    """Return whether any record of a ``verdict.json`` is by an earlier rule.

    A record without the field ``rule`` is by the first rule.
    """
    try:
        return any(record.get("rule", 1) < RULE for record in json.loads(verdicts))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return False


def first_difference(name: str, stored: bytes, computed: bytes, earlier: bool = False) -> str:
    """Return one line about the first difference between a stored and a computed CSV or JSON file.

    The line is empty if there is no difference. Numbers may differ by :data:`TOLERANCE`. If an ``earlier``
    version wrote the stored CSV file, it may lack columns.
    """
    if stored == computed:
        return ""
    try:
        if earlier and name.endswith(".csv"):
            computed = _without_new_columns(stored, computed)
        written, expected = dict(_values(name, stored)), dict(_values(name, computed))
    except (ValueError, csv.Error, RecursionError) as error:
        return f"the file cannot be read: {error}"
    for place in expected | written:
        if place not in written or place not in expected or not _equal(written[place], expected[place]):
            here, there = (short_repr(of[place]) if place in of else "nothing" for of in (written, expected))
            return f"{place}: the bundle has {here}, the results give {there}"
    return ""


def _without_new_columns(stored: bytes, computed: bytes) -> bytes:
    """Return a computed CSV file without the columns that the stored file lacks.

    Raises ``ValueError`` if the stored file has none of the columns.
    """
    titles = next(csv.reader(io.StringIO(stored.decode())), [])
    lines, cut = list(csv.reader(io.StringIO(computed.decode()))), io.StringIO()
    if not (kept := [column for column, title in enumerate(lines[0]) if title in titles]):
        raise ValueError("the file has none of the columns")
    csv.writer(cut).writerows([line[column] for column in kept] for line in lines)
    return cut.getvalue().encode()


def _values(name: str, content: bytes) -> Iterator[tuple[str, Any]]:
    """Yield ``(place, value)`` for every value of a CSV or JSON file.

    A place in a CSV file names line and column, such as ``line 2, accuracy (3)`` for the third column. A place in a
    JSON file is a path of keys and indices, such as ``[0].rule``.
    """
    if name.endswith(".json"):
        yield from _leaves("", json.loads(content))
        return
    heading: list[str] = []
    for number, line in enumerate(csv.reader(io.StringIO(content.decode())), start=1):
        heading = heading or line
        for column, (title, value) in enumerate(zip_longest(heading, line), start=1):
            yield f"line {number}, {title or 'column'} ({column})", value


def _leaves(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from _leaves(f"{place}.{key}" if place else key, item)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _leaves(f"{place}[{index}]", item)
    else:
        yield place, value


def _equal(stored: Any, computed: Any) -> bool:
    """Return whether two values are equal. Numbers may differ by rounding; in a CSV file, they are texts."""
    if stored == computed:
        return True
    try:
        return math.isclose(float(stored), float(computed), rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    except (TypeError, ValueError):
        return False
