"""Makes the task of a cell from the store's artifacts: everything that its method may see.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bolt.methods import METHODS
from bolt.seeds import torch_generator
from bolt.task.support import batch_order, draw_support
from bolt.task.task import EVALUATION_VIEW, Adapted, Support, Task, Unlabelled
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.required import CellArtifacts, cell_artifacts, configured_method
from orchestrator.artifacts.spectra import StoredSources
from orchestrator.artifacts.support_images import support_pool
from orchestrator.artifacts.views import place_images
from orchestrator.cells.evaluation import adapted_classes, evaluate
from orchestrator.core.cell import Cell
from orchestrator.tracks import TRACKS

KEPT_SOURCES = 2
"""Sets of sources that a process keeps with their bases, which take longer to compute than many a cell."""

_OWNER = object()
"""The key under which :func:`sources_cache` notes whose values it has."""


def make_task(cell: Cell, loaded: LoadedArtifacts) -> Task:
    """Everything the method may see of its target. Large parts are read when they are first used.

    No test label is in it, but a protocol that ``selects_on_test`` gives an oracle, which returns a classifier's
    accuracy.

    Raises ``ValueError`` if the method's code has another version than the cell, ``FileNotFoundError`` for an artifact
    that is not built, :class:`bolt.task.support.TooFewImages` if a class has too few images for the protocol.
    """
    method, settings = configured_method(cell)
    if method.version != cell.method.version:
        raise ValueError(f"the cell asks for version {cell.method.version} of {method.name}, this is {method.version}")
    reads = cell_artifacts(cell, loaded.catalog)
    head_CD = loaded.get(reads.head)
    count = adapted_classes(cell, len(head_CD))
    group = None if count == len(head_CD) else range(count)

    def oracle(adapted: Adapted) -> float:
        """Accuracy on the target's test images of the classes that the method is adapted to."""
        return evaluate(cell, cell.dataset, adapted, loaded, group).evaluation.accuracy

    text = None
    if method.trains_text(settings):
        words = reads.head.words(loaded)
        text = replace(words, class_names=words.class_names[:count])

    return Task(
        backbone=loaded.backbone(cell.backbone),
        head_CD=head_CD[:count],
        support=_support(cell, reads, loaded, count),
        sources=cell_sources(cell, loaded),
        protocol=cell.protocol,
        dataset=cell.dataset.name,
        seed=cell.seed,
        unlabelled=_unlabelled(cell, reads, loaded),
        oracle=oracle if cell.protocol.selects_on_test else None,
        initial=loaded.get(reads.meta_start) if reads.meta_start else None,
        text=text,
        cuda_graphs=loaded.settings.cuda_graphs,
    )


def cell_sources(cell: Cell, loaded: LoadedArtifacts) -> StoredSources | None:
    """The cell's source models, those of other datasets than its target; ``None`` if its method reads none."""
    if not METHODS[cell.method.name].uses_source_models or not cell.sources:
        return None
    key = cell.backbone, cell.sources
    sources = loaded.cached(StoredSources, key, lambda: StoredSources(loaded, *key), KEPT_SOURCES)
    sources.cache = sources_cache(cell, loaded)
    return sources


def sources_cache(cell: Cell, loaded: LoadedArtifacts) -> dict[Hashable, Any]:
    """The cache of what the cells of one method compute from their sources: stacked task vectors, a merged update.

    It can be as large as all source models together, so it is kept only while cells of the same method and sources
    follow each other. A call for another cell empties it.
    """
    cache: dict[Hashable, Any] = loaded.cached(sources_cache, None, dict, keep=1)
    if cache.get(_OWNER) != (owner := (cell.backbone, cell.method, cell.sources)):
        cache.clear()  # in place: the sources that are kept for earlier cells hold this dictionary, too
        cache[_OWNER] = owner
    return cache


def _support(cell: Cell, reads: CellArtifacts, loaded: LoadedArtifacts, class_count: int) -> Support:
    """The labelled images of the target's first ``class_count`` classes; empty if the method is given none."""
    if reads.support_images is None:
        empty = torch.empty(0, dtype=torch.int64)
        return Support(empty, empty, pixels=_undeclared, features=_undeclared, order=_undeclared)
    size, name = reads.head.image_size, cell.dataset.name
    pool = support_pool(reads.support_images, loaded)
    indices = draw_support(
        pool.labels_of_split,
        cell.shots,
        dataset=name,
        seed=cell.seed,
        short_classes=cell.protocol.short_classes,
        class_count=class_count,
        draw=TRACKS[cell.track].support_draw(cell.protocol),
        pool=cell.protocol.support_pool,
    )
    features_spec = reads.support_features

    def features(view: int) -> Tensor:
        if features_spec is None:
            return _undeclared()
        stored = loaded.get(features_spec)
        rows = torch.searchsorted(stored["indices_N"], torch.from_numpy(indices))
        return stored["features_VND"][view, rows].to(loaded.device)

    return Support(
        labels_N=torch.from_numpy(pool.labels_of_split[indices]).to(loaded.device),
        indices_N=torch.from_numpy(indices),
        pixels=lambda view, rows: pool.pixels(view, indices[rows.cpu().numpy()], size, reads.views),
        features=features,
        order=lambda epoch: batch_order(len(indices), dataset=name, seed=cell.seed, epoch=epoch),
    )


def _undeclared(*arguments: Any) -> Tensor:
    """Stands for an input that the method did not declare, and raises when the method reads it."""
    raise ValueError("the method's registration says that it does not read this")


def _unlabelled(cell: Cell, reads: CellArtifacts, loaded: LoadedArtifacts) -> Unlabelled | None:
    """The target's test images without labels. Augmented views are crops of images near their own size."""
    if reads.whole_test_images is None:
        return None
    name, seed, size = cell.dataset.name, cell.seed, reads.head.image_size
    images = loaded.get(Images(cell.dataset, "test", size))
    whole = place_images(reads.whole_test_images, loaded.get(reads.whole_test_images), loaded)

    def pixels(view: int, rows: Tensor) -> Tensor:
        if view == EVALUATION_VIEW:
            return torch.stack([images.image(row) for row in rows.tolist()])
        return reads.views.draw(whole, rows.tolist(), view, size=size, dataset=name, seed=seed)

    return Unlabelled(
        size=len(images),
        pixels=pixels,
        features=lambda: loaded.get(TestFeatures(cell.backbone, cell.dataset, size)).to(loaded.device),
        order=lambda stream, number, count: torch.randperm(
            count, generator=torch_generator("stream", name, seed, stream, number, count)
        ),
    )
