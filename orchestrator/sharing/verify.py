"""Checks a bundle: its checksums, its records, and whether its rows and verdicts follow from its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core.cell import Cell
from orchestrator.sharing.bundle import CELLS, TEXT_LIMITS, read_cells, read_text_limits
from orchestrator.sharing.bundle_file import MANIFEST, BundleFile, Problem, read_bundle
from orchestrator.sharing.derived import Measured, derived_files, first_difference
from orchestrator.store.predictions import StoredPredictions, checked_predictions
from orchestrator.store.results import Result


@dataclass(frozen=True)
class Verification:
    """What a check of a bundle found.

    Attributes:
        grid, cells, results: the grid's name, and the numbers of its cells and results.
        version: of the project that wrote the bundle; tables of another version may be laid out otherwise.
        computed: the files that were computed again from the results; none if the results themselves are not intact.
        problems: everything that is wrong; none for a bundle as it was written.
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
    problems = list(bundle.problems)
    cells: dict[str, tuple[Cell, str]] = {}
    results: list[Result] = []
    computed: dict[str, bytes] = {}
    if CELLS in bundle.files:
        try:
            cells = read_cells(bundle.files[CELLS])
        except ValueError as error:
            problems.append(Problem(CELLS, str(error)))
    if cells:
        results, predictions, wrong = read_records(bundle, cells)
        problems += wrong
        measured = _measured(bundle, cells, results, predictions)
        if isinstance(measured, Problem):
            problems.append(measured)
        elif not problems:
            computed = derived_files(measured)
            for name, content in computed.items():
                if name not in bundle.files:
                    problems.append(Problem(name, "it is missing"))
                elif difference := first_difference(name, bundle.files[name], content):
                    problems.append(Problem(name, difference))
            for name in bundle.files:
                if name.startswith("tables/") and name not in computed:
                    problems.append(Problem(name, "the results give no such table"))
    elif not problems:
        problems.append(Problem(CELLS, "it is missing, or it names no cells"))
    grid, project = str(bundle.manifest.get("grid", "?")), bundle.manifest.get("project")
    version = str(project.get("version", "?")) if isinstance(project, dict) else "?"
    return Verification(grid, version, len(cells), len(results), tuple(computed), tuple(problems))


def read_records(
    bundle: BundleFile, cells: Mapping[str, tuple[Cell, str]]
) -> tuple[list[Result], dict[str, tuple[StoredPredictions, ...]], list[Problem]]:
    """The results of a bundle in the order of ``cells``, their predictions by cell id, and what is wrong in them."""
    results, predictions, problems = {}, {}, []
    for name, content in bundle.files.items():
        folder, _, file = name.partition("/")
        cell_id, _, ending = file.rpartition(".")
        if folder != "results" or ending != "json":
            continue
        try:
            result = Result.from_json(content.decode("utf-8", "replace"))
            if cell_id not in cells or result.cell != cells[cell_id][0]:
                raise ValueError(f"it is the result of {result.cell.id}, which is no cell of that name in {CELLS}")
            if result.predictions is not None:
                file = f"{cell_id}.npz"
                predictions[cell_id] = checked_predictions(bundle.files.get(f"results/{file}"), result)
            results[cell_id] = result
        except ValueError as error:
            problems.append(Problem(f"results/{file}", str(error)))
    return [results[cell_id] for cell_id in cells if cell_id in results], predictions, problems


def _measured(
    bundle: BundleFile,
    cells: Mapping[str, tuple[Cell, str]],
    results: list[Result],
    predictions: Mapping[str, tuple[StoredPredictions, ...]],
) -> Measured | Problem:
    """What the tables are computed from, or what is wrong with it."""
    smallest = bundle.manifest.get("smallest_difference")
    if isinstance(smallest, bool) or not isinstance(smallest, int | float) or not smallest > 0:
        return Problem(MANIFEST, "smallest_difference is not a number")
    try:
        limits = read_text_limits(bundle.files.get(TEXT_LIMITS, b""))
    except ValueError as error:
        return Problem(TEXT_LIMITS, str(error) if TEXT_LIMITS in bundle.files else "it is missing")
    labels = {cell_id: label for cell_id, (_, label) in cells.items()}
    return Measured([cell for cell, _ in cells.values()], labels, results, predictions, limits, float(smallest))
