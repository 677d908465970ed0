"""Which artifacts a grid's cells need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

from bolt.methods import METHODS
from orchestrator.artifacts import kinds as artifacts
from orchestrator.artifacts.kinds import (
    DIRECTIONS_TIER,
    ArtifactSpec,
    DomainTotal,
    Images,
    Source,
    SourceDirections,
    tier,
)
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef, Cell, SourceRef
from orchestrator.tracks import TRACKS


def required_artifacts(
    cells: Iterable[Cell],
    grid: Iterable[Cell],
    catalog: Catalog,
    sources: Mapping[SourceRef, Source],
) -> list[ArtifactSpec]:
    """Every artifact ``cells`` need, each once, inputs before what reads them.

    Args:
        cells: the ones that will run.
        grid: all cells of the grid. A domain's total covers the sources of all of them, so that it stays the same one
            while the open cells become fewer.
        catalog: knows the backbones' sizes and which datasets may be mirrored.
        sources: the model behind every source of the grid.
    """
    direct: dict[ArtifactSpec, None] = {}
    pools: set[tuple[BackboneRef, str]] = set()
    for cell in cells:
        direct.update(dict.fromkeys(direct_inputs(cell, catalog)))
        method = METHODS[cell.method.name]
        if cell.sources and method.meta_recipe is None:
            models = [sources[source] for source in cell.sources]
            settings = method.configure(cell.method.settings_dict(), cell.track)
            top_k = method.source_directions(settings, catalog.backbone(cell.backbone.name).width, len(models))
            for model in models:
                direct[model if top_k == 0 else SourceDirections(model, tier(top_k, DIRECTIONS_TIER))] = None
            if method.uses_mean_task_vector:
                pools.add((cell.backbone, cell.domain))
    for total in _totals(grid, pools, sources):
        direct[total] = None
    return artifacts.closure(direct)


def direct_inputs(cell: Cell, catalog: Catalog) -> Iterator[ArtifactSpec]:
    """What a cell reads of its target and its evaluated datasets, and its meta-learned start; not its sources."""
    method = METHODS[cell.method.name]
    settings = method.configure(cell.method.settings_dict(), cell.track)
    size = catalog.backbone(cell.backbone.name).image_size
    yield artifacts.Head(cell.backbone, cell.dataset, size)
    for dataset in cell.evaluate_on:
        yield artifacts.TestFeatures(cell.backbone, dataset, size)
    if method.meta_recipe is not None:
        yield artifacts.meta_start(cell, size, method.meta_recipe(settings))
        if cell.protocol.meta_scoring == "validation":
            yield Images(cell.dataset, "train", size)
    if not method.uses_support:
        return
    if not TRACKS[cell.track].gives_support:
        yield Images(cell.dataset, "test_whole", size)
        return
    yield artifacts.support_images(cell)
    views = method.support_feature_views(settings)
    if views is not None:
        family = artifacts.view_family(cell, method, catalog.dataset(cell.dataset.name).mirrorable)
        yield artifacts.support_features(cell, size, family, views)


def _totals(
    grid: Iterable[Cell],
    pools: Set[tuple[BackboneRef, str]],
    sources: Mapping[SourceRef, Source],
) -> Iterator[DomainTotal]:
    """One total per backbone and domain, over the sources of all its cells."""
    groups: dict[tuple[BackboneRef, str], list[dict[str, Source]]] = {}
    seen: set[tuple[SourceRef, ...]] = set()
    for cell in grid:
        uses_models = METHODS[cell.method.name].meta_recipe is None
        if (cell.backbone, cell.domain) in pools and uses_models and cell.sources and cell.sources not in seen:
            seen.add(cell.sources)
            models = {source.dataset: sources[source] for source in cell.sources}
            _join(groups.setdefault((cell.backbone, cell.domain), []), models)
    for of_domain in groups.values():
        for group in of_domain:
            yield DomainTotal(tuple(group[name] for name in sorted(group)))


def _join(groups: list[dict[str, Source]], models: dict[str, Source]) -> None:
    """Add a cell's sources to the first group that has no other model of the same dataset."""
    for group in groups:
        if all(group.get(name, model) == model for name, model in models.items()):
            group.update(models)
            return
    groups.append(dict(models))
