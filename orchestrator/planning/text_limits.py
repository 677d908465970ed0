"""The datasets of a grid whose class words a text tower cannot tell apart, and the methods that this limits."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from bolt.methods import METHODS
from orchestrator.artifacts.head import Head, computed_text_limit, stored_text_limit
from orchestrator.artifacts.source_model import SourceModel
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
        limit = _limit(plan, store, backbone, dataset)
        if limit is not None and limit.shared:
            limited = [method for name, method in METHODS.items() if name in methods[place]]
            titles = tuple(method.title for method in limited if method.names_new_classes)
            limits.append(replace(limit, methods=titles))
    return tuple(limits)


def source_limits(plan: Plan, store: Store) -> dict[Place, TextLimit]:
    """The limits of the tasks that source models were fine-tuned on, by backbone and dataset, from stored heads."""
    limits = {}
    for source in plan.sources.values():
        if isinstance(source, SourceModel):
            limit = stored_text_limit(store, Head(source.backbone, source.dataset, source.image_size))
            if limit is not None and limit.shared:
                limits[source.backbone.name, source.dataset.name] = limit
    return limits


def _limit(plan: Plan, store: Store, backbone: BackboneRef, dataset: DatasetRef) -> TextLimit | None:
    head = Head(backbone, dataset, plan.catalog.backbone(backbone.name).image_size)
    stored, entry = stored_text_limit(store, head), plan.catalog.dataset(dataset.name)
    if stored is not None or entry.is_bundled:
        return stored
    return computed_text_limit(plan.catalog.backbone(backbone.name), entry, plan.data_root)
