"""The work of a plan on a machine with GPUs: counted operations, and the work of CPU cores beside them."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from bolt.clip.text_tower import PROMPTS_AT_ONCE
from bolt.task.scoring import SCORING_BATCH
from orchestrator.artifacts.host_work import (
    HostWork,
    basis_made,
    launches,
    task_vectors_read,
    test_images_read,
    views_on_device,
)
from orchestrator.artifacts.required import configured_method, required_artifacts
from orchestrator.catalog import Catalog
from orchestrator.catalog.text_sizes import text_sizes
from orchestrator.core.cell import Cell
from orchestrator.planning.cost import cell_gflops
from orchestrator.planning.plan import Plan
from orchestrator.tracks import TRACKS

PAPER_METHODS = frozenset({
    "zero_shot", "linear_probe", "tip_adapter", "lp_plus_plus", "lora", "layer_norm", "atlas", "bolt", "bolt_pooled",
    "full_finetune", "meta_init",
})  # fmt: skip
"""The methods of the BOLT paper's tables and figures. Other methods make a grid larger than the paper's."""

_BATCH_SIZE = 32
"""Images of a training step of a method whose settings do not say it."""


@dataclass(frozen=True)
class Workload:
    """The work of some cells and of the missing artifacts that they need.

    Attributes:
        cells: how many cells.
        uncounted: how many of them take no images through a tower: they train on cached features. The time of such a
            cell is that of launching small operators, and is not counted.
        gflops: backbone -> 10^9 operations in its towers.
        host: what CPU cores do beside the GPU.
    """

    cells: int
    uncounted: int
    gflops: Mapping[str, float]
    host: HostWork


def workload(plan: Plan, cells: Iterable[Cell]) -> Workload:
    """The work of those of the plan's cells, and of the missing artifacts that they need."""
    wanted, missing = list(cells), set(plan.missing)
    gflops: dict[str, float] = defaultdict(float)
    host, uncounted = HostWork(), 0
    prepared: set[Hashable] = set()
    of_work: dict[Hashable, tuple[float, HostWork]] = {}
    for cell in wanted:
        key = (cell.track, cell.backbone.name, cell.dataset.name, cell.evaluate_on, cell.shots, cell.method)
        if key not in of_work:  # cells that differ in their seed take the same work
            of_work[key] = cell_gflops(cell, plan.catalog), _cell_host_work(cell, plan.catalog)
        counted, beside = of_work[key]
        uncounted += not counted
        gflops[cell.backbone.name] += counted
        host += beside + _sources_host_work(cell, plan.catalog, prepared)
    for spec in required_artifacts(wanted, plan.cells, plan.catalog, plan.sources):
        if spec in missing:
            host += spec.host_work(plan.catalog)
            for backbone, counted in spec.gflops_by_backbone(plan.catalog).items():
                gflops[backbone] += counted
    return Workload(len(wanted), uncounted, gflops, host)


def _cell_host_work(cell: Cell, catalog: Catalog) -> HostWork:
    """What a CPU core does for a cell whose views are made on a GPU, beside preparing its sources."""
    method, settings = configured_method(cell)
    backbone, entry = catalog.backbone(cell.backbone.name), catalog.dataset(cell.dataset.name)
    track = TRACKS[cell.track]
    passes = track.tower_passes(method, settings, cell.shots * entry.classes, entry.sizes.test)
    batch = getattr(settings, "batch_size", _BATCH_SIZE)
    work = views_on_device(passes.training + passes.forward)
    work += launches(backbone.layers, math.ceil(passes.training / batch), math.ceil(passes.forward / SCORING_BATCH))
    if passes.text_training:
        steps = passes.text_training * math.ceil(entry.classes / PROMPTS_AT_ONCE)
        work += launches(text_sizes(backbone).layers, steps, 0)
    if method.changes_tower:
        scorings = 1 + getattr(settings, "epochs", 0) * track.scored_after_epochs
        tested = scorings * sum(catalog.dataset(ref.name).sizes.test for ref in cell.evaluate_on)
        work += test_images_read(tested) + launches(backbone.layers, 0, tested / SCORING_BATCH)
    return work


def _sources_host_work(cell: Cell, catalog: Catalog, prepared: set[Hashable]) -> HostWork:
    """Reading the cell's sources, or making bases of them, unless a cell with the same sources has done it."""
    method, settings = configured_method(cell)
    if not (cell.sources and method.uses_source_models):
        return HostWork()
    backbone, count = catalog.backbone(cell.backbone.name), len(cell.sources)
    directions = method.source_directions(settings, backbone.width, count)
    key = (cell.backbone, cell.sources, directions)
    if key in prepared:
        return HostWork()
    prepared.add(key)
    prepare = basis_made if directions else task_vectors_read
    return prepare(count, backbone.parameters)
