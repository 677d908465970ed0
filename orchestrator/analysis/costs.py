"""The costs of using a method, and the order in which the kinds of costs are compared."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

from orchestrator.analysis import CostKind
from orchestrator.analysis.rows import Row
from orchestrator.store.results import Result
from orchestrator.tracks import TRACKS, configured
from orchestrator.util.grouping import grouped

FELT = 1.25
"""Costs within this factor count as equal: a user hardly feels them, and memory is not measured more precisely."""
PROMPT_SHARE = 0.2
"""Cost of a prompt in the text tower, divided by that of an image in ViT-B/32's image tower; less in larger towers."""
_MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """The costs of one run of a method; ``None`` for an unknown cost.

    Attributes:
        sources: whether the method reads source models, which the user must then have.
        operations: counted operations to adapt, in units of the forward pass of one image through the image tower.
        memory: peak of memory in bytes.
        parameters: the number of trainable parameters, which must be kept to predict.
        seconds: measured time to adapt. It depends on other work on the machine, so the recommendation ignores it.
    """

    sources: bool | None = None
    operations: float | None = None
    memory: int | None = None
    parameters: int | None = None
    seconds: float | None = None

    def of(self, kind: str) -> float:
        """Return the cost of one kind: one of :func:`kinds` or ``seconds``; infinity if it is unknown."""
        found = getattr(self, kind)
        return math.inf if found is None else float(found)


def kinds(first: CostKind) -> tuple[str, ...]:
    """Return the kinds of costs in the order of comparison: source models, ``first``, then the other kinds."""
    return "sources", first, *(kind for kind in get_args(CostKind) if kind != first)


def cheapest(methods: Sequence[str], costs: Mapping[str, Cost], first: CostKind) -> str:
    """Return the cheapest method.

    The kinds of costs are compared one after the other. For each kind, only methods that cost at most ``FELT`` times
    the lowest cost remain. If several methods are left at the end, the first of them is returned.
    """
    left = list(methods)
    for kind in kinds(first):
        paid = {method: costs.get(method, Cost()).of(kind) for method in left}
        least = min(paid.values())
        left = [method for method in left if paid[method] <= FELT * least]
    return left[0]


def costs_of(rows: Iterable[Row], results: Mapping[str, Result]) -> dict[str, Cost]:
    """Return the costs of one cell of each method: the medians over the method's cells.

    Args:
        rows: the rows of the cells. A cell can have several rows.
        results: the results by cell id. Without the result of a cell, its operations and sources are unknown.
    """
    cells = {row.cell_id: row for row in rows}.values()
    return {method: _cost(own, results) for method, own in grouped(cells, lambda row: row.method).items()}


def _cost(rows: Sequence[Row], results: Mapping[str, Result]) -> Cost:
    known = [found for row in rows if row.cell_id in results and (found := _counted(results[row.cell_id]))]
    return Cost(
        sources=any(sources for sources, _ in known) if known else None,
        operations=median(operations for _, operations in known) if known else None,
        memory=round(median(row.peak_memory_mib for row in rows) * _MIB),
        parameters=round(median(row.trainable_parameters for row in rows)),
        seconds=median(row.fit_seconds for row in rows),
    )


def _counted(result: Result) -> tuple[bool, float] | None:
    """Return whether a cell read sources, and the operations to adapt; ``None`` if its method or a setting is gone."""
    cell, support, track = result.cell, result.support_size, TRACKS[result.cell.track]
    try:
        method, settings = configured(cell.method, cell.track)
    except (LookupError, ValueError):
        return None
    if getattr(settings, "epochs", 0) is None:  # the method chose them, and recorded the loss of each
        settings = replace(settings, epochs=len(result.curves.get("train_loss", ())) or None)
    tested = sum(found.total for found in result.evaluations)
    passes = track.tower_passes(method, settings, support, tested)
    images = passes.forward + method.training_forwards * passes.training
    if support and (last_view := method.support_feature_views(settings)) is not None:
        images += support * (last_view + 1)  # cells share the support's features, but each cell counts the passes
    few = cell.shots and track.meets_new_classes  # the method adapts to other classes than those that are scored
    classes = support / cell.shots if few else len(result.evaluations[0].per_class)
    prompts = method.training_forwards * passes.text_training * classes
    return method.uses_source_models and bool(cell.sources), images + PROMPT_SHARE * prompts


def frontier(scores: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """Return the methods on the Pareto frontier, by increasing cost.

    A method is on the frontier if no other method is better at the same or a lower cost. Costs within ``FELT`` count as
    equal. Methods of unknown cost are left out. A higher score is better.
    """
    known = sorted((cost, method) for method, cost in costs.items() if method in scores and cost < math.inf)

    def beaten(cost: float, method: str) -> bool:
        return any(scores[other] > scores[method] and paid <= FELT * cost for paid, other in known)

    return [method for cost, method in known if not beaten(cost, method)]
