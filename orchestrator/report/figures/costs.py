"""What accuracy costs: against trained numbers and against time, with memory as the size of the bubbles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, panel_slug
from orchestrator.report.analysis.rows import Row
from orchestrator.report.figures.drawing import FAINT, INK, FigureFile, canvas, finished, legend_below, legend_label
from orchestrator.report.styles import NEUTRAL, Style
from orchestrator.report.text import k_title

_SMALLEST, _LARGEST = 12.0, 280.0
"""Square points of bubbles."""

_SHORTEST = 1e-3
"""Seconds: less than a millisecond is drawn as one."""


def accuracy_against_costs(panel: Panel, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Mean accuracy against trained numbers and against seconds to adapt; ``None`` for fewer than two methods.

    Seconds and trained numbers are medians over the panel's cells at this k, memory is the largest peak of any.
    """
    points = []
    for method in panel.methods:
        mean, own = panel.mean(method, k).accuracy, rows_at(panel, method, k)
        if mean and own:
            trained, seconds = (
                median(values) for values in zip(*((r.trainable_parameters, r.fit_seconds) for r in own), strict=True)
            )
            points.append((method, mean, trained, seconds, max(row.peak_memory_mib for row in own)))
    if sum(method not in panel.fixed for method, *_ in points) < 2:
        return None
    memories = [memory for *_, memory in points]
    with canvas(9.0, 3.9 + 0.17 * -(-len(points) // 6)) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        trained_places = _places([trained for _, _, trained, *_ in points])
        second_places = _places([max(seconds, _SHORTEST) for *_, seconds, _ in points])
        for axes, (places, ticks) in ((left, trained_places), (right, second_places)):
            for x, (method, mean, *_, memory) in zip(places, points, strict=True):
                style = styles[method]
                axes.errorbar(
                    [x], [mean.mean], yerr=[mean.std or 0.0], fmt="none", ecolor=INK, elinewidth=0.9, zorder=4
                )
                axes.scatter(
                    [x], [mean.mean], s=_area(memory, max(memories)), color=style.colour, alpha=0.75,
                    marker=style.marker or "o", linewidth=0, label=legend_label(method),
                )  # fmt: skip
            axes.set_xticks([place for place, _ in ticks], [text for _, text in ticks])
            axes.grid(color=FAINT)
            axes.set_axisbelow(True)
            axes.margins(0.1)
        left.set_xlabel("numbers trained (median over cells)")
        right.set_xlabel("seconds to adapt (median over cells)")
        left.set_ylabel("mean accuracy over datasets (%)")
        frozen = [panel.zero_shot(k, test) for test in panel.tests(k, averaged=True)]
        if frozen and None not in frozen:
            level = math.fsum(value for value in frozen if value is not None) / len(frozen)
            for axes in (left, right):
                axes.axhline(level, color=NEUTRAL, linestyle="--", linewidth=1.2, zorder=1)
        legend_below(figure, left, columns=6)
        for handle in figure.legends[0].legend_handles:
            handle.set_sizes([36.0])
        at = f" at {k_title(k)}" if k else ""
        spread = (
            f"Whiskers: ± one sample standard deviation over n = {len(panel.seeds)} seeds. " if len(panel.seeds) > 1
            else "One seed, so there are no whiskers. "
        )  # fmt: skip
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"costs_{panel_slug(panel)}_k{k}",
            title=f"Accuracy against what it costs{at}, {panel.title}",
            caption=f"Mean over {dataset_count(panel)}. {spread}Areas are proportional to the largest peak "
            f"memory, from {min(memories):,.0f} to {max(memories):,.0f} MiB. Dashed: the frozen backbone. Seconds are "
            "wall-clock on the machines that ran the cells.",
            wide=True,
        )


def rows_at(panel: Panel, method: str, k: int) -> list[Row]:
    """The method's rows at ``k``, of every test split and seed."""
    return [row for test in panel.tests(k) for row in panel.seed_rows(method, k, test).values()]


def _area(memory: float, most: float) -> float:
    """Square points, proportional to the memory, with the least that can be seen."""
    return max(_SMALLEST, _LARGEST * memory / most if most else 0.0)


def _places(costs: Sequence[float]) -> tuple[list[float], list[tuple[float, str]]]:
    """Where costs stand on an axis of powers of ten, and its ticks; zero stands a step before the least."""
    powers = [math.log10(cost) if cost else None for cost in costs]
    known = [power for power in powers if power is not None] or [0.0]
    first, last = math.floor(min(known)), math.ceil(max(known))
    ticks = [(float(power), power_words(power)) for power in range(first, last + 1, -(-(last - first + 1) // 7))]
    if len(known) < len(powers):
        ticks.insert(0, (first - 1.0, "0"))
    return [first - 1.0 if power is None else power for power in powers], ticks


def power_words(power: int) -> str:
    """A power of ten as an axis prints it: ``0.01``, ``100``, ``10 k``, ``1 M``."""
    if power < 3:
        return f"{10.0**power:g}"
    unit = min(power // 3, 4)
    return f"{10 ** (power - 3 * unit)} {' kMGT'[unit]}"
