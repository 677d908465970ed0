"""Measures some cells of a bundle again and compares them with its results. No result is written to the store."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.artifacts.required import required_artifacts
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.catalog import Catalog, CheckpointEntry, backbone_ref
from orchestrator.cells.measure import measure
from orchestrator.core.cell import SourceRef
from orchestrator.core.recipes import SourceRecipe
from orchestrator.core.settings import RunSettings
from orchestrator.execution.run import build_artifacts
from orchestrator.grid import Grid, SourcePlan
from orchestrator.planning.checks import check_inputs
from orchestrator.planning.plan import Plan, source_models
from orchestrator.sharing.bundle import CELLS, Bundle, read_bundle
from orchestrator.store.predictions import StoredPredictions, parse_predictions
from orchestrator.store.results import Result
from orchestrator.util.errors import UserError, one_line


@dataclass(frozen=True)
class Rerun:
    """One cell measured again.

    Attributes:
        accuracy, accuracy_now: of the bundle and of the new measurement, on the first test split, per cent.
        other_predictions: number of test images with another prediction; ``None`` without stored predictions.
        same: whether all scores and predictions are equal.
        versions: packages, device and threads that differ between the two measurements: name -> (then, now).
        error: why it could not be measured, one line; empty if it could.
    """

    cell_id: str
    accuracy: float
    accuracy_now: float | None
    other_predictions: int | None
    same: bool
    versions: Mapping[str, tuple[str, str]]
    error: str = ""


def rerun_bundle(path: Path, settings: RunSettings, limit: int, seed: int = 0) -> Iterator[Rerun]:
    """Draw cells of a bundle, build their artifacts, measure them again in this process and compare.

    Args:
        settings: store of the artifacts, and how to compute. Artifacts that the store has are used as they are.
        limit, seed: number of cells that are drawn, all if the bundle has fewer; and of the draw.

    Raises ``UserError`` for a bundle that is not intact, and if datasets, backbones or checkpoints are missing here or
    are not those of the bundle.
    """
    bundle = read_bundle(path)
    for file, what in bundle.problems.items():
        raise UserError(f"the bundle is not intact: {what}", where=file, hint="see: bundle verify")
    drawn = random.Random(seed).sample(bundle.results, min(limit, len(bundle.results)))
    loaded = ArtifactCache(settings)
    _check_identities(drawn, loaded)
    plan = _plan(bundle, drawn, loaded)
    check_inputs(plan)
    failed = build_artifacts(plan.missing, settings, loaded.store, lambda event: None)
    for event in failed.values():
        raise UserError(f"{event.key} could not be built: {event.error}", where=loaded.store.url)
    for result in drawn:
        yield _measure_again(result, bundle.predictions.get(result.cell.id), loaded)


def _measure_again(result: Result, stored: tuple[StoredPredictions, ...] | None, loaded: ArtifactCache) -> Rerun:
    cell_id, accuracy = result.cell.id, result.evaluations[0].accuracy
    try:
        measurement = measure(result.cell, loaded)
    except Exception as error:  # a method may raise anything
        return Rerun(cell_id, accuracy, None, None, False, {}, one_line(error))
    now = measurement.result
    other = None
    if stored is not None:
        pairs = zip(stored, parse_predictions(measurement.predictions, now.evaluations), strict=True)
        other = sum(int((then.predicted != again.predicted).sum()) for then, again in pairs)
    same = now.evaluations == result.evaluations and not other
    differing = result.manifest.differences(now.manifest)
    return Rerun(cell_id, accuracy, now.evaluations[0].accuracy, other, same, differing)


def _check_identities(drawn: list[Result], loaded: ArtifactCache) -> None:
    """Raise ``UserError`` if the catalog here has another dataset or backbone than was measured."""
    for ref in dict.fromkeys(ref for result in drawn for ref in (result.cell.dataset, *result.cell.evaluate_on)):
        try:
            loaded.dataset_entry(ref)
        except UserError:
            hint = "give the --catalog and --data-root that the grid was run with"
            raise UserError(f"dataset {ref.name} is not the one of the bundle", hint=hint) from None
    for backbone in dict.fromkeys(result.cell.backbone for result in drawn):
        loaded.backbone(backbone)


def _plan(bundle: Bundle, drawn: list[Result], loaded: ArtifactCache) -> Plan:
    """Return a plan whose open cells are the drawn ones, whatever results the store has."""
    catalog, cells = loaded.catalog, tuple(result.cell for result in drawn)
    every = tuple(cell for cell, _ in bundle.cells.values())
    plans = {}
    for record in json.loads(bundle.files[CELLS])["sources"]:
        backbone = replace(backbone_ref(catalog.backbone(record["backbone"])), precision=record.get("precision"))
        plans[SourceRef(record["dataset"], record["digest"])] = SourcePlan(backbone, _recipe(record, catalog))
    names = [ref.name for cell in every for ref in (cell.dataset, *cell.evaluate_on)] + [ref.dataset for ref in plans]
    datasets = {name: catalog.datasets[name] for name in dict.fromkeys(names) if name in catalog.datasets}
    grid = Grid("bundle", "", "", cells, every, plans, datasets, {}, {}, 1.0)
    models = source_models(grid, catalog, loaded.data_root)
    specs = required_artifacts(cells, every, catalog, models)
    missing = tuple(spec for spec in specs if not loaded.store.is_intact(spec.address, spec.identity))
    return Plan(grid, catalog, loaded.data_root, cells, models, missing=missing)


def _recipe(record: Mapping[str, Any], catalog: Catalog) -> SourceRecipe | CheckpointEntry:
    """Return how a source is made. Raises ``UserError`` for an adopted checkpoint that the catalog here lacks."""
    if record["adopted"] is None:
        return SourceRecipe(**record["recipe"])
    entry = catalog.checkpoints.get((record["backbone"], record["dataset"]))
    if entry is None or entry.sha256 != record["adopted"]:
        raise UserError(
            f"the adopted source model of {record['dataset']} for {record['backbone']} is not in the catalog",
            hint=f"give the --catalog that names the checkpoint with sha256 {record['adopted']}",
        )
    return entry
