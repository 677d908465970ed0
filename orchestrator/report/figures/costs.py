"""Accuracy against cost: against a method's trainable parameters, and against its seconds to adapt."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median

from orchestrator.analysis.rows import Row
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.figures.by_dataset import drawn_ks
from orchestrator.report.figures.drawing import FAINT, FigureFile, canvas, group_figure
from orchestrator.report.figures.labels import PointLabel, label_points
from orchestrator.report.styles import NEUTRAL

_SHORTEST = 1e-3
"""Seconds. Shorter times are drawn at this place of the axis."""


def accuracy_against_costs(grid: GridResults, group: ComparisonGroup) -> Iterator[FigureFile]:
    """Draw mean accuracy against trainable parameters, and against seconds to adapt, at the largest k that is drawn.

    Nothing if fewer than two methods that draw a support have a mean.
    """
    k = drawn_ks(group)[-1]
    means = {method: mean for method in group.methods if (mean := group.mean(method, k))}
    if sum(method not in group.fixed for method in means) < 2:
        return
    yield _figure(
        grid, group, k, means, lambda row: row.trainable_parameters,
        name="costs_parameters", title="Accuracy against trainable parameters",
        axis="trainable parameters (median over cells)",
    )  # fmt: skip
    yield _figure(
        grid, group, k, means, lambda row: max(row.fit_seconds, _SHORTEST),
        name="costs_seconds", title="Accuracy against time", axis="seconds to adapt (median over cells)",
    )  # fmt: skip


def _figure(
    grid: GridResults, group: ComparisonGroup, k: int, means: Mapping[str, Summary], cost: Callable[[Row], float], *,
    name: str, title: str, axis: str,
) -> FigureFile:  # fmt: skip
    verdicts = [answer.at(k) for answer in grid.answers_about(group) if not answer.dataset]
    best = {method for verdict in verdicts if verdict for method in verdict.comparison.best_set}
    costs = [median(cost(row) for row in group.rows_at(method, k)) for method in means]
    xs, ticks = _log_axis(costs)
    with canvas(5.6, 3.5) as figure:
        axes = figure.add_subplot()
        labels = []
        for x, (method, mean) in zip(xs, means.items(), strict=True):
            style = grid.styles[method]
            inside = style.colour if method in best else "none"
            axes.errorbar(
                [x], [mean.mean], yerr=[mean.std or 0.0], color=style.colour, marker=style.marker or "o", markersize=7,
                markerfacecolor=inside, markeredgewidth=1.4, elinewidth=1.0, zorder=4,
            )  # fmt: skip
            labels.append(PointLabel(grid.display_names[method], x, mean.mean, style.colour))
        axes.set_xticks([x for x, _ in ticks], [text for _, text in ticks])
        axes.set_xlim(min(*xs, ticks[0][0]) - 0.4, max(*xs, ticks[-1][0]) + 0.6)
        axes.grid(color=FAINT)
        axes.margins(y=0.12)
        axes.set_xlabel(axis)
        axes.set_ylabel(f"mean {group.metric.title} (%)")
        if "zero_shot" not in map(grid.method_names.get, means):
            frozen = [group.zero_shot(k, test) for test in group.tests(k, averaged=True)]
            if known := [value for value in frozen if value is not None] if None not in frozen else []:
                axes.axhline(fmean(known), color=NEUTRAL, linestyle="--", linewidth=1.2, zorder=1)
                labels.append(PointLabel("zero-shot", axes.get_xlim()[0], fmean(known), NEUTRAL))
        label_points(axes, labels)
        filled = "Filled: may be the best, at 95 %. " if best else ""
        caption = f"{filled}Mean over {group.dataset_count()}. {group.deviation_text('Whiskers')}"
        if name == "costs_seconds":
            caption += " Seconds are wall-clock on the machines that ran the cells."
        return group_figure(figure, group, name, title, caption, k=k, table="main")


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
