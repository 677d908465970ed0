"""Measures some cells of a bundle again and compares them with its results. No result is written to the store."""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.artifacts.required import configured_method, required_artifacts
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
        accuracy: the bundle's accuracy on the cell's first test split, in per cent.
        accuracy_now: the new accuracy on this split; ``None`` if the cell could not be measured.
        other_predictions: number of test images whose prediction differs; ``None`` without stored or new predictions.
        same: whether all scores and predictions are equal.
        versions: differences in packages, device and threads: name -> (value in the bundle, value now).
        error: one line that says why the cell could not be measured; empty if it was.
    """

    cell_id: str
    accuracy: float
    accuracy_now: float | None
    other_predictions: int | None
    same: bool
    versions: Mapping[str, tuple[str, str]]
    error: str = ""


def rerun_bundle(path: Path, settings: RunSettings, limit: int, seed: int = 0) -> Iterator[Rerun]:
    """Draw cells of a bundle, measure them again in this process, and yield the comparison for each cell.

    Args:
        settings: the store of the artifacts, and how to compute. Artifacts that the store lacks are built.
        limit: number of cells to draw; all cells if the bundle has fewer.
        seed: seed of the draw.

    Raises ``UserError`` if the bundle is not intact, if one of its methods is not installed, if a dataset, backbone or
    checkpoint is missing here or differs from the bundle's, or if an artifact cannot be built.
    """
    bundle = read_bundle(path)
    for file, what in bundle.problems.items():
        raise UserError(f"the bundle is not intact: {what}", where=file, hint="`bundle verify` lists all problems")
    drawn = random.Random(seed).sample(bundle.results, min(limit, len(bundle.results)))
    for result in bundle.results:
        configured_method(result.cell)  # raises UserError for a method that is not installed
    loaded = ArtifactCache(settings)
    _check_identities(drawn, loaded)
    plan = _plan(bundle, drawn, loaded)
    check_inputs(plan)
    for event in build_artifacts(plan.missing, settings, loaded.store, lambda event: None).values():
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
    return Rerun(cell_id, accuracy, now.evaluations[0].accuracy, other, same, result.manifest.differences(now.manifest))


def _check_identities(drawn: list[Result], loaded: ArtifactCache) -> None:
    """Raise ``UserError`` if a dataset or a backbone of the catalog here is not the one that was measured."""
    for ref in dict.fromkeys(ref for result in drawn for ref in (result.cell.dataset, *result.cell.evaluate_on)):
        try:
            loaded.dataset_entry(ref)
        except UserError:
            hint = "give the --catalog and --data-root that the grid was run with"
            raise UserError(f"dataset {ref.name} differs from that of the bundle", hint=hint) from None
    for backbone in dict.fromkeys(result.cell.backbone for result in drawn):
        loaded.backbone(backbone)


def _plan(bundle: Bundle, drawn: list[Result], loaded: ArtifactCache) -> Plan:
    """Return a plan in which exactly the drawn cells are open, even if the store has results of them."""
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
    specs = required_artifacts(cells, catalog, models)
    missing = tuple(spec for spec in specs if not loaded.store.is_intact(spec.address, spec.identity))
    return Plan(grid, catalog, loaded.data_root, cells, models, missing=missing)


def _recipe(record: Mapping[str, Any], catalog: Catalog) -> SourceRecipe | CheckpointEntry:
    """Return the recipe or the checkpoint of a source. Raises ``UserError`` if the catalog lacks the checkpoint."""
    if record["adopted"] is None:
        return SourceRecipe(**record["recipe"])
    entry = catalog.checkpoints.get((record["backbone"], record["dataset"]))
    if entry is None or entry.sha256 != record["adopted"]:
        what = f"the adopted source model of {record['dataset']} for {record['backbone']} is not in the catalog"
        raise UserError(what, hint=f"give the --catalog that names the checkpoint with sha256 {record['adopted']}")
    return entry
