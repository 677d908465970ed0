"""Accuracy against cost: trained parameters, time to adapt and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.by_dataset import drawn_ks
from orchestrator.report.figures.drawing import FAINT, INK, FigureFile, canvas, finished, legend_below, legend_label
from orchestrator.report.notation import at_k
from orchestrator.report.styles import NEUTRAL

_SMALLEST, _LARGEST = 12.0, 280.0
"""Areas of bubbles, in square points."""

_SHORTEST = 1e-3
"""Seconds. Shorter times are drawn at this place of the axis."""


@dataclass(frozen=True)
class _Cost:
    """One method's bubble: medians over cells of parameters and seconds, and the largest peak memory of any cell."""

    method: str
    accuracy: Summary
    parameters: float
    seconds: float
    memory_mib: float


def accuracy_against_costs(study: Study, panel: Panel) -> FigureFile | None:
    """Mean accuracy against trained parameters and against seconds to adapt; bubbles show the peak memory.

    ``None`` if fewer than two methods that draw a support have a mean.
    """
    k = drawn_ks(panel)[-1]
    costs = []
    for method in panel.methods:
        mean, rows = panel.mean(method, k).accuracy, panel.rows_at(method, k)
        if mean and rows:
            parameters = median(row.trainable_parameters for row in rows)
            seconds = median(row.fit_seconds for row in rows)
            costs.append(_Cost(method, mean, parameters, seconds, max(row.peak_memory_mib for row in rows)))
    if sum(cost.method not in panel.fixed for cost in costs) < 2:
        return None
    memories = [cost.memory_mib for cost in costs]
    with canvas(9.0, 3.9 + 0.17 * -(-len(costs) // 6)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        parameter_axis = _log_axis([cost.parameters for cost in costs])
        second_axis = _log_axis([max(cost.seconds, _SHORTEST) for cost in costs])
        for axes, (xs, ticks) in ((left, parameter_axis), (right, second_axis)):
            for x, cost in zip(xs, costs, strict=True):
                style, mean = study.styles[cost.method], cost.accuracy
                axes.errorbar(
                    [x], [mean.mean], yerr=[mean.std or 0.0], fmt="none", ecolor=INK, elinewidth=0.9, zorder=4
                )
                axes.scatter(
                    [x], [mean.mean], s=_area(cost.memory_mib, max(memories)), color=style.colour, alpha=0.75,
                    marker=style.marker or "o", linewidth=0, label=legend_label(cost.method),
                )  # fmt: skip
            axes.set_xticks([x for x, _ in ticks], [title for _, title in ticks])
            axes.grid(color=FAINT)
            axes.set_axisbelow(True)
            axes.margins(0.1)
        left.set_xlabel("numbers trained (median over cells)")
        right.set_xlabel("seconds to adapt (median over cells)")
        left.set_ylabel("mean accuracy over datasets (%)")
        zero_shot = [panel.zero_shot(k, test) for test in panel.tests(k, averaged=True)]
        if zero_shot and None not in zero_shot:
            mean_zero_shot = math.fsum(value for value in zero_shot if value is not None) / len(zero_shot)
            for axes in (left, right):
                axes.axhline(mean_zero_shot, color=NEUTRAL, linestyle="--", linewidth=1.2, zorder=1)
        legend_below(figure, left, columns=6)
        for handle in figure.legends[0].legend_handles:
            handle.set_sizes([36.0])
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"costs_{panel.key.slug}_k{k}",
            title=f"Accuracy against what it costs{at_k(k)}, {panel.title}",
            caption=f"Mean over {panel.dataset_count()}. {panel.deviation_text('Whiskers')} Areas are proportional to "
            f"the largest peak memory, from {min(memories):,.0f} to {max(memories):,.0f} MiB. Dashed: the frozen "
            "backbone. Seconds are wall-clock on the machines that ran the cells.",
            wide=True,
        )


def _area(memory: float, largest: float) -> float:
    """The area of a bubble in square points: proportional to the memory, but never too small to see."""
    return max(_SMALLEST, _LARGEST * memory / largest if largest else 0.0)


def _log_axis(values: Sequence[float]) -> tuple[list[float], list[tuple[float, str]]]:
    """Positions of ``values`` on an axis of powers of ten, and its ticks. Zero is one step below the smallest power."""
    powers = [math.log10(value) if value else None for value in values]
    known = [power for power in powers if power is not None] or [0.0]
    first, last = math.floor(min(known)), math.ceil(max(known))
    ticks = [(float(power), power_of_ten(power)) for power in range(first, last + 1, -(-(last - first + 1) // 7))]
    if len(known) < len(powers):
        ticks.insert(0, (first - 1.0, "0"))
    return [first - 1.0 if power is None else power for power in powers], ticks


def power_of_ten(power: int) -> str:
    """A power of ten as an axis prints it: ``0.01``, ``100``, ``10 k``, ``1 M``."""
    if power < 3:
        return f"{10.0**power:g}"
    unit = min(power // 3, 4)
    return f"{10 ** (power - 3 * unit)} {' kMGT'[unit]}"
