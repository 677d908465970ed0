"""Draws accuracy against cost. A method is on the Pareto frontier if no cheaper method is better."""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from orchestrator.analysis.costs import Cost
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.frontiers import KINDS, NOTE, frontiers, frontiers_text, group_costs
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.figures.by_dataset import drawn_ks
from orchestrator.report.figures.drawing import FAINT, FigureFile, canvas, group_figure
from orchestrator.report.figures.labels import PointLabel, label_points
from orchestrator.report.styles import NEUTRAL

_AXES = {
    "operations": "operations to adapt (passes of an image)",
    "seconds": "seconds to adapt",
    "memory": "peak memory (MiB)",
    "parameters": "trainable parameters",
}
_TITLES = {"operations": "against operations", "parameters": "against trainable parameters"}
_UNITS = {"memory": 2.0**20}
_SHORTEST = 1e-3
"""Seconds. Shorter times are drawn as this time."""


def accuracy_against_costs(grid: GridResults, group: ComparisonGroup) -> Iterator[FigureFile]:
    """Draw mean accuracy against costs at one k, the largest one of :func:`drawn_ks`.

    The first figure is against the operations to adapt or, if they are unknown for a method, against the trainable
    parameters. The second figure is against all other costs that are known for every method. There are no figures if
    fewer than two methods with a support have a mean.
    """
    k = drawn_ks(group)[-1]
    means = {method: mean for method in group.methods if (mean := group.mean(method, k))}
    if sum(method not in group.fixed for method in means) < 2:
        return
    costs = group_costs(grid, group, k)
    known = [kind for kind in KINDS if all(costs.get(method, Cost()).of(kind) < math.inf for method in means)]
    first = "operations" if "operations" in known else "parameters"
    yield _figure(grid, group, k, means, costs, [first], name=f"costs_{first}", title=_TITLES[first])
    others = [kind for kind in known if kind != first]
    yield _figure(grid, group, k, means, costs, others, name="costs_others", title="against other costs")


def _figure(
    grid: GridResults, group: ComparisonGroup, k: int, means: Mapping[str, Summary], costs: Mapping[str, Cost],
    kinds: Sequence[str], *, name: str, title: str,
) -> FigureFile:  # fmt: skip
    verdicts = [series.at(k) for series in grid.verdicts_about(group) if not series.dataset]
    best = {method for verdict in verdicts if verdict for method in verdict.comparison.best_set}
    found = frontiers(group, means, costs)

    def draw(axes: Any, kind: str) -> list[PointLabel]:
        """Draw the methods' means against one kind of cost, and the Pareto frontier as steps.

        Returns the names to write beside the points.
        """
        values = [costs[method].of(kind) / _UNITS.get(kind, 1.0) for method in means]
        xs, ticks = _log_axis([max(value, _SHORTEST) if kind == "seconds" else value for value in values])
        places, labels = dict(zip(means, xs, strict=True)), []
        for method, mean in means.items():
            style = grid.styles[method]
            inside = style.colour if method in best else "none"
            axes.errorbar(
                [places[method]], [mean.mean], yerr=[mean.std or 0.0], color=style.colour, marker=style.marker or "o",
                markersize=7, markerfacecolor=inside, markeredgewidth=1.4, elinewidth=1.0, zorder=4,
            )  # fmt: skip
            labels.append(PointLabel(grid.display_names[method], places[method], mean.mean, style.colour))
        axes.set_xticks([x for x, _ in ticks], [text for _, text in ticks])
        axes.set_xlim(min(*xs, ticks[0][0]) - 0.4, max(*xs, ticks[-1][0]) + 0.6)
        steps = [(places[method], means[method].mean) for method in found[kind]]
        ends = [*(x for x, _ in steps), axes.get_xlim()[1]], [*(y for _, y in steps), steps[-1][1]]
        axes.step(*ends, where="post", color=NEUTRAL, linewidth=1.0, alpha=0.4, zorder=2)
        axes.grid(color=FAINT)
        axes.margins(y=0.12)
        axes.set_xlabel(_AXES[kind])
        if "zero_shot" not in map(grid.method_names.get, means):
            frozen = [group.zero_shot(k, test) for test in group.tests(k, averaged=True)]
            if known := [value for value in frozen if value is not None] if None not in frozen else []:
                axes.axhline(fmean(known), color=NEUTRAL, linestyle="--", linewidth=1.2, zorder=1)
                labels.append(PointLabel("zero-shot", axes.get_xlim()[0], fmean(known), NEUTRAL))
        return labels

    with canvas(5.6 if len(kinds) == 1 else 3.4 * len(kinds), 3.5) as figure:
        plots = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        labels = [draw(axes, kind) for axes, kind in zip(plots, kinds, strict=True)]
        plots[0].set_ylabel(f"mean {group.metric.title} (%)")
        for axes, own in zip(plots, labels, strict=True):  # names are placed in the final layout
            label_points(axes, own)
        filled = " Filled: may be the best, at 95 %." if best else ""
        mean = f"Mean {group.mean_text} over {group.dataset_count()}."
        caption = f"{frontiers_text(grid, found, kinds, 6)} {NOTE}{filled} {mean} {group.deviation_text('Whiskers')}"
        if "seconds" in kinds:
            caption += " Seconds are wall-clock on the machines that ran the cells."
        heading = f"{group.metric.heading} {title}"
        return group_figure(figure, group, name, heading, caption, k=k, table="frontier", wide=len(kinds) > 1)


def _log_axis(values: Sequence[float]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the positions of ``values`` on an axis of powers of ten, and its ticks.

    Zero is one step below the smallest power.
    """
    powers = [math.log10(value) if value else None for value in values]
    known = [power for power in powers if power is not None] or [0.0]
    first, last = math.floor(min(known)), math.ceil(max(known))
    ticks = [(float(power), power_of_ten(power)) for power in range(first, last + 1, -(-(last - first + 1) // 7))]
    if len(known) < len(powers):
        ticks.insert(0, (first - 1.0, "0"))
    return [first - 1.0 if power is None else power for power in powers], ticks


def power_of_ten(power: int) -> str:
    """Return a power of ten as an axis prints it: ``0.01``, ``100``, ``10 k``, ``1 M``."""
    if power < 3:
        return f"{10.0**power:g}"
    unit = min(power // 3, 4)
    return f"{10 ** (power - 3 * unit)} {' kMGT'[unit]}"
