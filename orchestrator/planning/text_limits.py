"""The datasets of a grid whose class words a text tower cannot tell apart, and the methods that this limits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from bolt.methods import METHODS
from orchestrator.artifacts.head import Head, computed_text_limit, stored_text_limit
from orchestrator.artifacts.source_model import Source, SourceModel
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.core.text_limit import TextLimit
from orchestrator.planning.plan import Plan
from orchestrator.store import Store

Place = tuple[str, str]
"""The names of a backbone and of a dataset."""


def text_limits(plan: Plan, store: Store) -> tuple[TextLimit, ...]:
    """The targets and scored datasets with fewer distinct class vectors than classes, once for each backbone.

    Stored heads are read. Of heads that are not built, those of small backbones are computed for images that are here;
    drawn datasets are left out then, because the small CLIP has learned their words.
    """
    heads: dict[Place, tuple[BackboneRef, DatasetRef]] = {}
    methods: dict[Place, set[str]] = defaultdict(set)
    for cell in plan.grid.cells:
        for dataset in (cell.dataset, *cell.evaluate_on):
            place = cell.backbone.name, dataset.name
            heads.setdefault(place, (cell.backbone, dataset))
            methods[place].add(cell.method.name)
    limits = []
    for place, (backbone, dataset) in heads.items():
        tower, entry = plan.catalog.backbone(backbone.name), plan.catalog.dataset(dataset.name)
        limit = stored_text_limit(store, Head(backbone, dataset, tower.image_size))
        if limit is None and not entry.is_bundled:
            limit = computed_text_limit(tower, entry, plan.data_root)
        if limit is not None and limit.shared:
            limited = [method for name, method in METHODS.items() if name in methods[place]]
            titles = tuple(method.title for method in limited if method.names_new_classes)
            limits.append(replace(limit, methods=titles))
    return tuple(limits)


def source_limit(source: Source, store: Store) -> TextLimit | None:
    """The limit of the task that a source model was fine-tuned on, from its stored head; ``None`` if it has none."""
    if not isinstance(source, SourceModel):
        return None
    limit = stored_text_limit(store, Head(source.backbone, source.dataset, source.image_size))
    return limit if limit is not None and limit.shared else None
