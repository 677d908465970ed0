"""A bundle of a grid: everything a reader needs to believe its tables, in one file. docs/results.md lists its files.

Results and failures are the stored records, unchanged. The rows, tables and verdicts are computed from them alone, so
that a check can compute them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from orchestrator import __version__
from orchestrator.analysis.rows import labels_of, row_list
from orchestrator.artifacts.head import EqualClasses
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.recipes import SourceRecipe
from orchestrator.grid import Grid
from orchestrator.planning.plan import Plan
from orchestrator.report.analysis.grid_results import arrange_results
from orchestrator.report.grid_report import text_limits
from orchestrator.report.registry import group_tables, report_tables
from orchestrator.report.tables.formats import FILE_FORMATS
from orchestrator.sharing.bundle_file import write_bundle
from orchestrator.sharing.frames import finished_results, to_csv
from orchestrator.store import Store
from orchestrator.store.predictions import StoredPredictions
from orchestrator.store.results import Result
from orchestrator.util.identity import slug

CELLS, TEXT_LIMITS = "cells.json", "text_limits.json"


def make_bundle(
    plan: Plan, files: Iterable[Path], store: Store, path: Path, overrides: Sequence[str] = ()
) -> tuple[int, int]:
    """Write the bundle of a grid to ``path``; returns how many results and how many failures it has.

    ``files``: the grid's file, and those that it includes; ``overrides``: values of ``--set``. Raises ``UserError`` if
    no cell has finished, or if the bundle cannot be written.
    """
    grid = plan.grid
    labels = labels_of(grid.cells, grid.label)
    results = finished_results(store, grid.name, labels)
    predictions = store.read_predictions(results)
    content = {f"grid/{number}-{file.name}": file.read_bytes() for number, file in enumerate(files)}
    if overrides:
        content["grid/set.txt"] = "\n".join(overrides).encode()
    content["catalog.json"] = _json(_catalog_entries(grid, plan.catalog))
    content[CELLS] = _json(_cell_records(grid, labels))
    names = [f"results/{result.cell.id}.{ending}" for result in results for ending in ("json", "npz")]
    stored = zip(names, store.files.read_many(names), strict=True)
    content |= {name: record for name, record in stored if record is not None}
    failures = [failure for name, failure in store.read_failures().items() if name in labels]
    content |= {f"failures/{failure.id}.json": failure.to_json().encode() for failure in failures}
    limits = text_limits(plan, store)
    content[TEXT_LIMITS] = _json([asdict(limit) for limit in limits])
    content |= derived_files(grid.cells, labels, results, predictions, limits, grid.smallest_difference)
    write_bundle(path, _manifest(grid, results), content)
    return len(results), len(failures)


def derived_files(
    cells: Sequence[Cell],
    labels: Mapping[str, str],
    results: Sequence[Result],
    predictions: Mapping[str, Sequence[StoredPredictions]],
    limits: Sequence[EqualClasses],
    smallest_difference: float,
) -> dict[str, bytes]:
    """``rows.csv``, ``verdict.json`` and the report's tables, ``tables/*.csv``, by name.

    Left out are the tables that need more than results: of failures, of source models, and of the paper's numbers.

    Args:
        labels, predictions: by cell id; of the results, some have no predictions.
        smallest_difference: the smallest difference that matters, in points.
    """
    grid_results = arrange_results(
        results=results,
        failures=(),
        planned=cells,
        label_of=lambda cell: labels[cell.id],
        read_predictions=lambda asked: {
            result.cell.id: predictions[result.cell.id] for result in asked if result.cell.id in predictions
        },
        text_limits=limits,
        smallest_difference=smallest_difference,
    )
    tables = [
        table for group in grid_results.groups for own in group_tables(grid_results, group).values() for table in own
    ]
    tables += [table for own in report_tables(grid_results).values() for table in own]
    return {
        "rows.csv": to_csv(row_list(results, labels)),
        "verdict.json": _json(grid_results.verdict_records()) + b"\n",
        **{f"tables/{slug(table.name)}.csv": FILE_FORMATS["csv"](table).encode() for table in tables},
    }


def _manifest(grid: Grid, results: Iterable[Result]) -> dict[str, Any]:
    """Everything of the manifest but the list of files. Each combination of ``fields`` stands in it once."""
    fields = ("commit", "dirty", "versions", "device", "threads")
    made_with = dict.fromkeys(
        json.dumps({name: getattr(result.manifest, name) for name in fields}) for result in results
    )
    return {
        "grid": grid.name,
        "title": grid.title,
        "description": grid.description,
        "smallest_difference": grid.smallest_difference,
        "project": {"name": "bolt-orchestrator", "version": __version__},
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "measured_with": [json.loads(text) for text in made_with],
    }


def _catalog_entries(grid: Grid, catalog: Catalog) -> dict[str, Any]:
    """Return the catalog's entries that the grid uses, by section and key."""
    domains = dict.fromkeys(cell.domain for cell in grid.cells)
    adopted = grid.adopted_checkpoints
    return {
        "domains": {name: catalog.domain(name).model_dump(mode="json") for name in domains},
        "datasets": {name: entry.model_dump(mode="json") for name, entry in grid.datasets.items()},
        "backbones": {name: entry.model_dump(mode="json") for name, entry in grid.backbones.items()},
        "checkpoints": [entry.model_dump(mode="json", exclude={"file"}) for entry in adopted],
    }


def _cell_records(grid: Grid, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the cells with their labels, and the source models.

    A model is given by its recipe, or by the checksum of the adopted checkpoint.
    """
    sources = [
        {
            "dataset": ref.dataset,
            "digest": ref.digest,
            "backbone": plan.backbone.name,
            "precision": plan.backbone.precision,
            "recipe": asdict(plan.recipe) if isinstance(plan.recipe, SourceRecipe) else None,
            "adopted": None if isinstance(plan.recipe, SourceRecipe) else plan.recipe.sha256,
        }
        for ref, plan in grid.sources.items()
    ]
    cells = [{"id": cell.id, "label": labels[cell.id], "cell": cell.to_dict()} for cell in grid.cells]
    return {"cells": cells, "sources": sources}


def read_cells(content: bytes) -> dict[str, tuple[Cell, str]]:
    """Cell id -> (cell, label) of ``cells.json``, at least one. Raises ``ValueError`` if it is damaged."""
    try:
        found = {}
        for record in json.loads(content)["cells"]:
            cell = Cell.from_dict(record["cell"])
            if cell.id != record["id"]:
                raise ValueError(f"the cell called {record['id']} is {cell.id}")
            found[cell.id] = cell, str(record["label"])
        if not found:
            raise ValueError("it names no cells")
        return found
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it cannot be read: {type(error).__name__} {error}") from None


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, ensure_ascii=False).encode()
