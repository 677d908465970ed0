"""Accuracy against cost: trained parameters, time to adapt and memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.by_dataset import drawn_ks
from orchestrator.report.figures.drawing import FAINT, INK, FigureFile, canvas, legend_below, legend_label, panel_figure
from orchestrator.report.styles import NEUTRAL

_SMALLEST, _LARGEST = 12.0, 280.0
"""Areas of bubbles, in square points."""

_SHORTEST = 1e-3
"""Seconds. Shorter times are drawn at this place of the axis."""


def accuracy_against_costs(study: Study, panel: Panel) -> FigureFile | None:
    """Mean accuracy against trained parameters and against seconds to adapt; bubbles show the peak memory.

    ``None`` if fewer than two methods that draw a support have a mean.
    """
    k = drawn_ks(panel)[-1]
    methods = [method for method in panel.methods if panel.mean(method, k).accuracy and panel.rows_at(method, k)]
    if sum(method not in panel.fixed for method in methods) < 2:
        return None
    rows = [panel.rows_at(method, k) for method in methods]
    memories = [max(row.peak_memory_mib for row in own) for own in rows]
    with canvas(9.0, 3.9 + 0.17 * -(-len(methods) // 6)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        parameter_axis = _log_axis([median(row.trainable_parameters for row in own) for own in rows])
        second_axis = _log_axis([max(median(row.fit_seconds for row in own), _SHORTEST) for own in rows])
        for axes, (xs, ticks) in ((left, parameter_axis), (right, second_axis)):
            for x, method, memory in zip(xs, methods, memories, strict=True):
                style, mean = study.styles[method], panel.mean(method, k).accuracy
                assert mean is not None
                axes.errorbar(
                    [x], [mean.mean], yerr=[mean.std or 0.0], fmt="none", ecolor=INK, elinewidth=0.9, zorder=4
                )
                axes.scatter(
                    [x], [mean.mean], s=_area(memory, max(memories)), color=style.colour, alpha=0.75,
                    marker=style.marker or "o", linewidth=0, label=legend_label(method),
                )  # fmt: skip
            axes.set_xticks([x for x, _ in ticks], [title for _, title in ticks])
            axes.grid(color=FAINT)
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
        caption = (
            f"Mean over {panel.dataset_count()}. {panel.deviation_text('Whiskers')} Areas are proportional to "
            f"the largest peak memory, from {min(memories):,.0f} to {max(memories):,.0f} MiB. Dashed: the frozen "
            "backbone. Seconds are wall-clock on the machines that ran the cells."
        )
        return panel_figure(figure, panel, "costs", "Accuracy against what it costs", caption, k=k, wide=True)


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
