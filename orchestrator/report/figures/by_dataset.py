"""Accuracy by dataset at one k: dots, or a map of gains for many methods."""

from __future__ import annotations

import math
import re
from typing import Any

from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import (
    FigureFile,
    canvas,
    heat_map,
    panel_figure,
)
from orchestrator.report.notation import DASH, signed
from orchestrator.report.styles import NEUTRAL

_DRAWN_KS = (4, 16)
"""The k whose accuracies by dataset are drawn, as in the literature."""
_PER_LINE = 6
"""Datasets side by side."""
MOST_DOTTED = 12
"""With more methods, a map of gains is drawn instead."""
_WIDTH, _BETWEEN_LINES = 9.0, 0.6
"""Inches: width of the dots' figure, and height between two lines of plots for titles and ticks."""
_LOSS_TO_GAIN = ("#f0a54a", "#f5f4f2", "#a79bd0")
"""Orange and purple differ for colour-blind readers too, and are pale enough to read numbers on them."""


def drawn_ks(panel: Panel) -> list[int]:
    """The k whose accuracies by dataset are drawn: 4 and 16, or the largest k of a panel that has neither."""
    return [k for k in panel.ks if k in _DRAWN_KS] or [panel.ks[-1]]


def accuracy_by_dataset(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Accuracy per dataset at one k as dots or, for many methods, the gain over zero-shot as a map."""
    return dataset_dots(study, panel, k) if len(panel.methods) <= MOST_DOTTED else gain_map(study, panel, k)


def _methods(panel: Panel) -> list[str]:
    """The methods of the panel without those that equal zero-shot everywhere."""
    return [m for m in panel.methods if m not in panel.fixed or not panel.is_zero_shot(m)]


def gain_map(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Datasets x methods at one k: the gain over zero-shot in points, as coloured squares with numbers."""
    tests, methods = panel.tests(k), _methods(panel)
    gains = [[_gain(panel, k, test, method) for method in methods] for test in tests]
    known = [abs(gain) for line in gains for gain in line if gain is not None]
    if not known:
        return None
    with canvas(2.0 + 0.5 * len(methods), 1.4 + 0.24 * len(tests)) as figure:
        axes = figure.add_subplot()
        # The upper quartile gets the strongest colours. If the maximum did, one outlier would make all others pale.
        strongest = max(sorted(known)[len(known) * 3 // 4], 1.0)
        values = [[math.nan if gain is None else gain for gain in line] for line in gains]
        heat_map(
            axes, values, colours=_LOSS_TO_GAIN, low=-strongest, high=strongest, edge=0.6, rows=tests,
            columns=[study.display_names[method] for method in methods], rotation=40,
        )  # fmt: skip
        for y, line in enumerate(gains):
            for x, gain in enumerate(line):
                printed = DASH if gain is None else signed(gain, 1)
                axes.text(x, y, printed, ha="center", va="center", fontsize=6.5, color="#000000")
        caption = (
            f"Points over the frozen backbone on the same images, means over seeds ({panel.seeds_text}): "
            f"purple is a gain, orange a loss, full colour from {strongest:.1f} points."
        )
        if any(gain is None for line in gains for gain in line):
            caption += " A dash: no result."
        return panel_figure(
            figure, panel, "gains", "Gain over zero-shot by dataset", caption, k=k, wide=True, table="datasets"
        )


def _gain(panel: Panel, k: int, test: str, method: str) -> float | None:
    rows = panel.rows_by_seed(method, k, test)
    return summarize([row.gain for row in rows.values()]).mean if rows else None


def dataset_dots(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Accuracy per dataset at one k: a small plot for each dataset, with a line for each method in all of them."""
    tests, methods = panel.tests(k), _methods(panel) or list(panel.methods)
    if not tests:
        return None
    per_line = min(len(tests), _PER_LINE)
    lines = -(-len(tests) // per_line)
    names = [study.display_names[method] for method in methods]
    plot_height = 0.17 * len(methods)
    height = lines * (plot_height + _BETWEEN_LINES) + 0.35
    with canvas(_WIDTH, height, arranged=False) as figure:
        figure.subplots_adjust(
            left=(0.15 + 0.066 * max(map(len, names))) / _WIDTH, right=0.985, wspace=0.12,
            top=1 - 0.42 / height, bottom=0.55 / height, hspace=_BETWEEN_LINES / plot_height,
        )  # fmt: skip
        grid = figure.subplots(lines, per_line, squeeze=False, sharey=True).ravel()
        for test, axes in zip(tests, grid, strict=False):
            for y, method in enumerate(methods):
                rows, score = panel.rows_by_seed(method, k, test), panel.score(method, k, test)
                if score is None:
                    continue
                colour, accuracies = study.styles[method].colour, [row.accuracy for row in rows.values()]
                axes.plot([min(accuracies), max(accuracies)], [y, y], color=colour, linewidth=1.6, alpha=0.6)
                axes.plot([score.mean], [y], marker="o", markersize=4.5, color=colour, zorder=3)
            frozen = panel.zero_shot(k, test)
            if frozen is not None:
                axes.axvline(frozen, color=NEUTRAL, linestyle="--", linewidth=1.0, zorder=1)
            axes.set_title(on_two_lines(test, 14), fontsize=8)
            axes.set_ylim(len(methods) - 0.5, -0.5)
            axes.tick_params(axis="x", labelsize=7)
            axes.tick_params(axis="y", labelsize=8)
            axes.xaxis.set_major_locator(_few_ticks())
            axes.grid(axis="x")
            axes.margins(x=0.08)
        grid[0].set_yticks(range(len(methods)), names)
        for axes in grid[len(tests) :]:
            axes.set_visible(False)
        figure.text(0.5, 0.08 / height, "accuracy (%), each dataset on its own scale", ha="center", fontsize=8)
        interval = "Lines: from the lowest to the highest seed. " if len(panel.seeds) > 1 else ""
        caption = (
            f"Means over seeds ({panel.seeds_text}). {interval}"
            "Dashed: the frozen backbone with its text head on the same images."
        )
        return panel_figure(figure, panel, "dots", "Accuracy by dataset", caption, k=k, wide=True, table="datasets")


def _few_ticks() -> Any:
    """At most three round numbers on an axis."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(3, integer=True)


def on_two_lines(name: str, width: int = 16) -> str:
    """A dataset's name, broken into two lines if it is longer than ``width``."""
    if len(name) <= width:
        return name
    breaks = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    middle = min(breaks, key=lambda at: abs(at - len(name) / 2), default=len(name) // 2)
    return f"{name[:middle]}\n{name[middle:].strip()}"
