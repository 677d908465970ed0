"""The inputs of one cell: its method, settings, artifacts and source models.

Shape legend: C classes, D embedding width.
"""

from collections.abc import Hashable
from functools import cached_property
from typing import Any

from torch import Tensor

from bolt.clip.backbone import Backbone
from bolt.clip.input_size import InputSize
from orchestrator.artifacts.required import CellArtifacts, cell_artifacts, configured_method
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.artifacts.spectra import SourceSet
from orchestrator.core.cell import Cell
from orchestrator.tracks import TRACKS

KEPT_SOURCES = 2
"""Number of sets of source models that a process keeps. A set also keeps the bases that were computed from it, because
computing a basis takes longer than many cells."""

_OWNER = object()
"""Key in the cache of :func:`_sources_cache`. Its value is the backbone, the method and the sources for which all other
values in the cache were computed."""


class CellInputs:
    """The inputs of one cell. An artifact is read from the store when it is first used.

    The cell's task and scores depend on these inputs alone. The process caches values that methods compute from
    sources. A new instance empties this cache if the values are for another backbone, method or sources.

    Attributes:
        cell, track, method, settings: the cell, its track, its method, and the method's settings on the track.
        loaded: the cache of the process, which reads artifacts from the store.
    """

    def __init__(self, cell: Cell, loaded: ArtifactCache) -> None:
        self.cell, self.loaded = cell, loaded
        self._sources_cache = _sources_cache(cell, loaded)
        self.track, (self.method, self.settings) = TRACKS[cell.track], configured_method(cell)

    @cached_property
    def artifacts(self) -> CellArtifacts:
        """All artifacts that the cell reads."""
        return cell_artifacts(self.cell, self.loaded.catalog)

    @property
    def image_size(self) -> InputSize:
        """The size of the images that the backbone takes."""
        return self.artifacts.head.image_size

    @property
    def backbone(self) -> Backbone:
        """The frozen backbone on this process's device."""
        return self.loaded.backbone(self.cell.backbone)

    @property
    def head_CD(self) -> Tensor:
        """The zero-shot head of all classes of the target."""
        return self.loaded.get(self.artifacts.head)

    @property
    def adapted_classes(self) -> int:
        """The number of the target's classes that the method is adapted to: all, or the base classes."""
        base_classes, classes = self.track.base_classes, len(self.head_CD)
        return classes if base_classes is None else base_classes(classes)

    @cached_property
    def sources(self) -> SourceSet | None:
        """The source models, each fine-tuned on another dataset than the target; ``None`` if the method reads none."""
        if not self.method.uses_source_models or not self.cell.sources:
            return None
        key = self.cell.backbone, self.cell.sources
        sources = self.loaded.cached(SourceSet, key, lambda: SourceSet(self.loaded, *key), KEPT_SOURCES)
        sources.cache = self._sources_cache
        return sources


def _sources_cache(cell: Cell, loaded: ArtifactCache) -> dict[Hashable, Any]:
    """Return the cache of values that a method computes from the sources, such as stacked task vectors.

    The values can be as large as all source models together. So the cache is kept only while cells of the same
    backbone, method and sources follow each other. A call for any other cell empties it.
    """
    cache: dict[Hashable, Any] = loaded.cached(_sources_cache, None, dict, size=1)
    if cache.get(_OWNER) != (owner := (cell.backbone, cell.method, cell.sources)):
        cache.clear()  # not a new dictionary, because kept sources of earlier cells still refer to this one
        cache[_OWNER] = owner
    return cache
