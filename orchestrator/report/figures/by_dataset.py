"""Accuracy by dataset at one k: dots, a map of gains for many methods, and a radar as in the paper."""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.figures.drawing import FAINT, FigureFile, canvas, group_figure, heat_map, legend_below
from orchestrator.report.styles import DASH, NEUTRAL, signed

_DRAWN_KS = (4, 16)
"""The k whose accuracies by dataset are drawn, as in the literature."""
_PER_LINE = 6
"""Number of datasets side by side."""
MOST_DOTTED = 12
"""The largest number of methods that are drawn as dots. For more methods, a map of gains is drawn."""
MOST_SPOKES = 40
"""The largest number of test splits in a radar. The names of more would overlap."""
_WIDTH, _RIGHT, _BETWEEN = 9.0, 0.135, 0.14
"""Inches: width of a figure with dots, its right margin, and the distance between two plots side by side."""
_METHOD, _TITLE, _TICKS = 0.17, 0.36, 0.24
"""Inches: height of a method's line, space above a plot for the title, and space below a plot for the axis."""
_LOSS_TO_GAIN = ("#f0a54a", "#f5f4f2", "#a79bd0")
"""The colours of a loss, of no change and of a gain. Colour-blind readers can tell orange from purple, and numbers can
be read on both."""


def drawn_ks(group: ComparisonGroup) -> list[int]:
    """Return every k for which accuracies by dataset are drawn.

    k = 4 and k = 16 are drawn if the group has them. If it has neither, its largest k is drawn.
    """
    return [k for k in group.ks if k in _DRAWN_KS] or [group.ks[-1]]


def accuracy_by_dataset(grid: GridResults, group: ComparisonGroup, k: int) -> FigureFile | None:
    """Draw accuracy per dataset at one k as dots or, for many methods, the gain over zero-shot as a map.

    ``None`` if ``k`` is not among :func:`drawn_ks`.
    """
    if k not in drawn_ks(group):
        return None
    rows = (row for method in group.methods for row in group.rows_at(method, k))
    few = len(group.methods) <= MOST_DOTTED or all(row.score_gain is None for row in rows)
    return dataset_dots(grid, group, k) if few else gain_map(grid, group, k)


def _methods(group: ComparisonGroup) -> list[str]:
    """Return the methods of the group without zero-shot itself."""
    return [m for m in group.methods if m not in group.fixed or not group.is_zero_shot(m)]


def gain_map(grid: GridResults, group: ComparisonGroup, k: int) -> FigureFile:
    """Draw the gain over zero-shot in points, datasets x methods at one k, as coloured squares with numbers."""
    tests, methods = group.tests(k), _methods(group)
    means = [[group.mean(method, k, lambda row: row.score_gain, tests=[test]) for method in methods] for test in tests]
    gains = [[mean.mean if mean else math.nan for mean in line] for line in means]
    known = [abs(gain) for line in gains for gain in line if not math.isnan(gain)]
    names = [grid.display_names[method] for method in methods]
    # The methods' names are slanted, below the squares. Each letter needs 0.05 inches of height and of width. If the
    # figure's size did not depend on the names, long names would leave no room for the squares.
    slanted = 0.05 * max(map(len, names))
    with canvas(max(2.0, slanted) + 0.5 * len(methods), 0.4 + slanted + 0.24 * len(tests)) as figure:
        axes = figure.add_subplot()
        # Gains from the upper quartile on have the strongest colours. If only the maximum had them, one outlier would
        # make all other gains pale.
        strongest = max(sorted(known)[len(known) * 3 // 4], 1.0)
        heat_map(
            axes, gains, colours=_LOSS_TO_GAIN, low=-strongest, high=strongest, edge=0.6, rows=tests,
            columns=names, rotation=40,
        )  # fmt: skip
        for y, line in enumerate(gains):
            for x, gain in enumerate(line):
                printed = DASH if math.isnan(gain) else signed(gain, 1)
                axes.text(x, y, printed, ha="center", va="center", fontsize=6.5, color="#000000")
        caption = (
            f"Points over the frozen backbone on the same images, means over seeds ({group.seeds_text}): "
            f"purple is a gain, orange a loss, full colour from {strongest:.1f} points."
        )
        if len(known) < len(tests) * len(methods):
            caption += " A dash: no result."
        return group_figure(
            figure, group, "gains", "Gain over zero-shot by dataset", caption, k=k, wide=True, table="datasets"
        )


def dataset_dots(grid: GridResults, group: ComparisonGroup, k: int) -> FigureFile:
    """Draw accuracy per dataset at one k: a small plot for each dataset, in which each method has a line.

    All plots are drawn in one set of axes, whose unit is an inch. With separate axes for each dataset, drawing sixteen
    datasets took three times as long.
    """
    tests, methods = group.tests(k), _methods(group)
    per_line = min(len(tests), _PER_LINE)
    names = [grid.display_names[method] for method in methods]
    left = 0.15 + 0.066 * max(map(len, names))
    width = (_WIDTH - left - _RIGHT - _BETWEEN * (per_line - 1)) / per_line
    pitch = len(methods) * _METHOD + _TITLE + _TICKS
    height = -(-len(tests) // per_line) * pitch + 0.2
    with canvas(_WIDTH, height, arranged=False) as figure:
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, _WIDTH), ylim=(height, 0))
        axes.set_axis_off()
        for number, test in enumerate(tests):
            line, column = divmod(number, per_line)
            top = line * pitch + _TITLE
            middles = [top + (y + 0.5) * _METHOD for y in range(len(methods))]
            _draw_dataset(axes, left + column * (width + _BETWEEN), width, middles, grid, group, k, test, methods)
            if column == 0:
                for middle, name in zip(middles, names, strict=True):
                    axes.text(left - 0.08, middle, name, ha="right", va="center", fontsize=8)
        scale = f"{group.metric.title} (%), each dataset on its own scale"
        axes.text(_WIDTH / 2, height - 0.06, scale, ha="center", fontsize=8)
        interval = "Lines: from the lowest to the highest seed. " if group.seed_counts[1] > 1 else ""
        caption = (
            f"Means over seeds ({group.seeds_text}). {interval}"
            "Dashed: the frozen backbone with its text head on the same images."
        )
        title = f"{group.metric.heading} by dataset"
        return group_figure(figure, group, "dots", title, caption, k=k, wide=True, table="datasets")


def _draw_dataset(
    axes: Any, left: float, width: float, middles: Sequence[float],
    grid: GridResults, group: ComparisonGroup, k: int, test: str, methods: Sequence[str],
) -> None:  # fmt: skip
    """Draw the plot of one dataset: a dot for each method's mean, and a line from its lowest to its highest seed.

    ``middles``: distance of each method's line from the top of the figure, in inches.
    """
    from matplotlib.ticker import MaxNLocator

    seeds = {
        y: [row.score for row in group.rows_by_seed(method, k, test).values()]
        for y, method in enumerate(methods)
        if group.score(method, k, test) is not None
    }
    frozen = group.zero_shot(k, test)
    shown = [*chain(*seeds.values()), *([frozen] if frozen is not None else [])]
    low, high = min(shown), max(shown)
    margin = 0.08 * (high - low) or 0.5
    low, high = low - margin, high + margin

    def place(accuracies: Iterable[float]) -> list[float]:
        return [left + width * (accuracy - low) / (high - low) for accuracy in accuracies]

    top, bottom = middles[0] - _METHOD / 2, middles[-1] + _METHOD / 2
    ticks = [float(tick) for tick in MaxNLocator(3, integer=True).tick_values(low, high) if low <= tick <= high]
    axes.vlines(place(ticks), top, bottom, color=FAINT, linewidth=0.6, zorder=0)
    axes.hlines([bottom], left, left + width, color=FAINT, linewidth=0.8, zorder=0)
    for x, tick in zip(place(ticks), ticks, strict=True):
        axes.text(x, bottom + 0.05, f"{tick:g}", ha="center", va="top", fontsize=7)
    if frozen is not None:
        axes.vlines(place([frozen]), top, bottom, color=NEUTRAL, linestyle="--", linewidth=1.0, zorder=1)
    colours = [grid.styles[methods[y]]["color"] for y in seeds]
    heights = [middles[y] for y in seeds]
    lowest, highest = place(map(min, seeds.values())), place(map(max, seeds.values()))
    axes.hlines(heights, lowest, highest, color=colours, linewidth=1.6, alpha=0.6)
    means = place(math.fsum(values) / len(values) for values in seeds.values())
    axes.scatter(means, heights, s=26, c=colours, linewidths=0, zorder=3)
    axes.text(left + width / 2, top - 0.06, _on_two_lines(test, 14), ha="center", va="bottom", fontsize=8)


def accuracy_radar(grid: GridResults, group: ComparisonGroup, k: int) -> FigureFile | None:
    """Draw the accuracy per dataset at one k as a radar. All spokes have the same scale, as in the paper.

    ``None`` if k is not drawn, if the group has fewer than three or more than ``MOST_SPOKES`` test splits, or if none
    of the group's accuracies is printed in the paper.
    """
    tests = group.tests(k)
    unprinted = all(row.published is None for row in group.rows)
    if unprinted or k not in drawn_ks(group) or not 3 <= len(tests) <= MOST_SPOKES:
        return None
    scores = {method: [group.score(method, k, test) for test in tests] for method in group.methods}
    means = {method: [score.mean if score else math.nan for score in own] for method, own in scores.items()}
    known = [mean for own in means.values() for mean in own if not math.isnan(mean)]
    low, high = max(0.0, 10 * math.floor((min(known) - 2) / 10)), 10 * math.ceil(max(known) / 10)
    angles = [2 * math.pi * i / len(tests) for i in range(len(tests))]
    with canvas(5.6, 5.4 + 0.17 * -(-len(group.methods) // 3)) as figure:
        axes = figure.add_subplot(projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        for method, own in means.items():
            axes.plot(
                [*angles, angles[0]], [*own, own[0]], **grid.styles[method], markersize=3.5, linewidth=1.5,
                label=grid.display_names[method], zorder=2 if method in group.fixed else 3,
            )  # fmt: skip
        axes.set_ylim(low, high)
        axes.set_yticks([*range(int(low), int(high) + 1, 10)][1:])
        axes.tick_params(axis="y", labelsize=7)
        axes.set_rlabel_position(180 / len(tests))
        axes.set_xticks(angles, [_on_two_lines(test, 12) for test in tests])
        axes.tick_params(axis="x", labelsize=7.5, pad=6)
        axes.spines["polar"].set_visible(False)
        legend_below(figure, axes, columns=3)
        caption = (
            f"{group.metric.heading} in per cent, means over seeds ({group.seeds_text}); the centre is {low:.0f}, all "
            "spokes have one scale, and areas mean nothing. A line is open where a dataset is missing."
        )
        title = f"{group.metric.heading} by dataset as a radar"
        return group_figure(figure, group, "radar", title, caption, k=k, table="datasets")


def _on_two_lines(name: str, width: int = 16) -> str:
    """Return a dataset's name, broken into two lines if it is longer than ``width``."""
    if len(name) <= width:
        return name
    breaks = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    middle = min(breaks, key=lambda at: abs(at - len(name) / 2), default=len(name) // 2)
    return f"{name[:middle]}\n{name[middle:].strip()}"
