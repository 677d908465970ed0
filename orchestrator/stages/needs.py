"""Which artifacts a grid's cells need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set

from bolt.methods import METHODS
from orchestrator.cell import BackboneRef, Cell, SourceRef
from orchestrator.stages import artifacts
from orchestrator.stages.artifacts import DomainTotal, Need, SourceDirections, SourceModel


def needs_of(
    cells: Iterable[Cell],
    grid: Iterable[Cell],
    image_size: Callable[[BackboneRef], int],
    source_model: Callable[[Cell, SourceRef], SourceModel],
) -> list[Need]:
    """Every artifact ``cells`` need, each once, inputs before what reads them.

    Args:
        cells: the ones that will run.
        grid: all cells of the grid. A domain's total covers the sources of all of them, so that it stays the same one
            while the open cells become fewer.
        image_size: side of the images a backbone takes.
        source_model: the model behind a source of a cell, with its recipe.
    """
    direct: dict[Need, None] = {}
    pools: set[tuple[BackboneRef, str]] = set()
    for cell in cells:
        method = METHODS[cell.method.name]
        settings = method.configure(cell.method.settings_dict())
        size = image_size(cell.backbone)
        direct[artifacts.Head(cell.backbone, cell.dataset, size)] = None
        for dataset in cell.evaluate_on:
            direct[artifacts.TestFeatures(cell.backbone, dataset, size)] = None
        if method.uses_support:
            direct[artifacts.support_images(cell)] = None
            views = method.support_views(settings)
            if views is not None:
                direct[artifacts.support_features(cell, size, views)] = None
        if not cell.sources:
            continue
        models = {source.dataset: source_model(cell, source) for source in cell.sources}
        top_k = artifacts.tier(getattr(settings, "top_k", artifacts.DIRECTIONS_TIER), artifacts.DIRECTIONS_TIER)
        for model in models.values():
            direct[SourceDirections(model, top_k)] = None
        pools.add((cell.backbone, cell.domain))
    for total in _totals(grid, pools, source_model):
        direct[total] = None
    return artifacts.closure(direct)


def _totals(
    grid: Iterable[Cell],
    pools: Set[tuple[BackboneRef, str]],
    source_model: Callable[[Cell, SourceRef], SourceModel],
) -> Iterator[DomainTotal]:
    """One total per backbone and domain, over the sources of all its cells."""
    groups: dict[tuple[BackboneRef, str], list[dict[str, SourceModel]]] = {}
    seen: set[tuple[SourceRef, ...]] = set()
    for cell in grid:
        if (cell.backbone, cell.domain) in pools and cell.sources and cell.sources not in seen:
            seen.add(cell.sources)
            models = {source.dataset: source_model(cell, source) for source in cell.sources}
            _join(groups.setdefault((cell.backbone, cell.domain), []), models)
    for of_domain in groups.values():
        for group in of_domain:
            yield DomainTotal(tuple(group[name] for name in sorted(group)))


def _join(groups: list[dict[str, SourceModel]], models: dict[str, SourceModel]) -> None:
    """Add a cell's sources to the first group that has no other model of the same dataset."""
    for group in groups:
        if all(group.get(name, model) == model for name, model in models.items()):
            group.update(models)
            return
    groups.append(dict(models))
