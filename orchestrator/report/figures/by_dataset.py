"""Accuracy by dataset at one k: bars, or a map of gains for many methods."""

from __future__ import annotations

import math
import re

from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import (
    INK,
    FigureFile,
    canvas,
    heat_map,
    legend_below,
    legend_label,
    panel_figure,
)
from orchestrator.report.notation import DASH, signed
from orchestrator.report.styles import NEUTRAL

_DRAWN_KS = (4, 16)
"""The k whose accuracies by dataset are drawn, as in the literature."""
_PER_LINE = 6
"""Datasets side by side."""
MOST_BARS = 8
"""With more methods, bars are too thin to tell apart, and a map of gains is drawn instead."""
_LOSS_TO_GAIN = ("#f0a54a", "#f5f4f2", "#a79bd0")
"""Orange and purple differ for colour-blind readers too, and are pale enough to read numbers on them."""


def drawn_ks(panel: Panel) -> list[int]:
    """The k whose accuracies by dataset are drawn: 4 and 16, or the largest k of a panel that has neither."""
    return [k for k in panel.ks if k in _DRAWN_KS] or [panel.ks[-1]]


def accuracy_by_dataset(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Accuracy per dataset at one k as bars or, for many methods, the gain over zero-shot as a map."""
    return dataset_bars(study, panel, k) if len(panel.methods) <= MOST_BARS else gain_map(panel, k)


def _methods(panel: Panel) -> list[str]:
    """The methods of the panel without those that equal zero-shot everywhere."""
    return [m for m in panel.methods if m not in panel.fixed or not panel.is_zero_shot(m)]


def gain_map(panel: Panel, k: int) -> FigureFile | None:
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
            columns=[legend_label(m) for m in methods], rotation=40,
        )  # fmt: skip
        for y, line in enumerate(gains):
            for x, gain in enumerate(line):
                printed = DASH if gain is None else signed(gain, 1)
                axes.text(x, y, printed, ha="center", va="center", fontsize=6.5, color="#000000")
        caption = (
            f"Points over the frozen backbone on the same images, means over seeds ({panel.seeds_text}): "
            f"purple is a gain, orange a loss, full colour from {strongest:.1f} points. A dash: no result."
        )
        return panel_figure(figure, panel, "gains", "Gain over zero-shot by dataset", caption, k=k, wide=True)


def _gain(panel: Panel, k: int, test: str, method: str) -> float | None:
    rows = panel.rows_by_seed(method, k, test)
    return summarize([row.gain for row in rows.values()]).mean if rows else None


def dataset_bars(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Accuracy per dataset at one k, a bar for each method; a dashed line is the zero-shot accuracy."""
    tests, methods = panel.tests(k), _methods(panel) or list(panel.methods)
    if not tests:
        return None
    lines = -(-len(tests) // _PER_LINE)
    per_line = -(-len(tests) // lines)
    with canvas(9.0, 0.7 + 1.9 * lines) as figure:
        grid = figure.subplots(lines, 1, squeeze=False, sharey=True)[:, 0]
        width = 0.8 / len(methods)
        for line, axes in enumerate(grid):
            shown = tests[line * per_line : (line + 1) * per_line]
            for index, method in enumerate(methods):
                scores = [panel.score(method, k, test) for test in shown]
                xs = [i - 0.4 + width * (index + 0.5) for i in range(len(shown))]
                means = [score.mean if score else 0.0 for score in scores]
                axes.bar(
                    xs, means, width=width * 0.92,
                    color=study.styles[method].colour, label=legend_label(method),
                )  # fmt: skip
                stds = [score.std if score and score.std is not None else math.nan for score in scores]
                axes.errorbar(xs, means, yerr=stds, fmt="none", ecolor=INK, elinewidth=0.8)
            frozen = [(i, zero) for i, test in enumerate(shown) if (zero := panel.zero_shot(k, test)) is not None]
            axes.hlines([y for _, y in frozen], [i - 0.44 for i, _ in frozen], [i + 0.44 for i, _ in frozen],
                        color=NEUTRAL, linestyle="--", linewidth=1.4, label="zero-shot")  # fmt: skip
            axes.set_xticks(range(len(shown)), [on_two_lines(test) for test in shown])
            axes.set_xlim(-0.5, per_line - 0.5)
            axes.grid(axis="y")
            axes.set_ylim(0, 100)
            axes.set_ylabel("accuracy (%)")
        legend_below(figure, grid[0], columns=7)
        caption = (
            f"{panel.deviation_text('Whiskers')} Dashed: the frozen backbone with its text head on the same images."
        )
        return panel_figure(figure, panel, "bars", "Accuracy by dataset", caption, k=k, wide=True)


def on_two_lines(name: str, width: int = 16) -> str:
    """A dataset's name, broken into two lines if it is longer than ``width``."""
    if len(name) <= width:
        return name
    breaks = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    middle = min(breaks, key=lambda at: abs(at - len(name) / 2), default=len(name) // 2)
    return f"{name[:middle]}\n{name[middle:].strip()}"
