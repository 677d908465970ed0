"""Costs of a group's methods, and Pareto frontiers. A method is on the frontier if no cheaper method is better."""

from collections.abc import Iterable, Mapping

from orchestrator.analysis.costs import Cost, costs_of, frontier
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.util.units import listed

KINDS: Mapping[str, str] = {
    "operations": "fewer operations",
    "seconds": "fewer seconds",
    "memory": "less memory",
    "parameters": "fewer trainable parameters",
}
"""Kind of cost -> words for a lower cost."""

NOTE = "By the means, whatever their intervals; costs are medians over cells, and equal within a factor of 1.25."


def group_costs(grid: GridResults, group: ComparisonGroup, k: int) -> Mapping[str, Cost]:
    """Return what each method of a group costs at one k.

    The group's verdict gives the costs. Without a verdict, the operations and the sources are unknown.
    """
    for series in grid.verdicts_about(group):
        if not series.dataset and (verdict := series.at(k)) is not None:
            return verdict.costs
    return costs_of((row for method in group.methods for row in group.rows_at(method, k)), {})


def frontiers(group: ComparisonGroup, means: Mapping[str, Summary], costs: Mapping[str, Cost]) -> dict[str, list[str]]:
    """Return kind of cost -> the methods on the frontier: no method with an equal or lower cost has a better mean."""
    scores = {method: group.metric.sign * mean.mean for method, mean in means.items()}
    return {kind: frontier(scores, {method: cost.of(kind) for method, cost in costs.items()}) for kind in KINDS}


def frontiers_text(grid: GridResults, found: Mapping[str, list[str]], kinds: Iterable[str], most: int) -> str:
    """Return a sentence for each kind of cost, with at most ``most`` of the methods on its frontier."""
    own = {KINDS[kind]: [grid.display_names[method] for method in found[kind]] for kind in kinds if found[kind]}
    return " ".join(f"Nothing is better for {words} than {listed(names, most)}." for words, names in own.items())
