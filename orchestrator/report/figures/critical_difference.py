"""The critical-difference diagram: average ranks on a line, with a bar over methods that do not differ."""

from __future__ import annotations

from typing import Any

from orchestrator.report.analysis.critical_difference import CriticalDifference, critical_difference
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import INK, FigureFile, canvas, panel_figure
from orchestrator.report.styles import Styles

_ROW, _BAR = 0.3, 0.16
"""Distances between two names and between two bars, in units of the y axis."""


def critical_difference_figure(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """The diagram at ``k``; ``None`` if there are too few methods, datasets or seeds for the test."""
    result = critical_difference(panel, k)
    if isinstance(result, str):
        return None
    top = 0.45 + _BAR * len(result.cliques)
    depth = top + _ROW * ((len(result.ranks) + 1) // 2)
    with canvas(7.2, 0.75 + depth * 0.8) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        low, high = 1.0, float(len(result.ranks))
        margin = 0.42 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.set_ylim(depth, -0.62)
        _draw_scales(axes, low, high, result.distance)
        for level, clique in enumerate(result.cliques):
            ends = (result.ranks[clique[0]] - 0.03, result.ranks[clique[-1]] + 0.03)
            axes.plot(ends, [0.2 + _BAR * level] * 2, color=INK, linewidth=3.2, solid_capstyle="round")
        _draw_methods(axes, result, study.styles, top)
        return panel_figure(
            figure, panel, "critical_difference", "Average ranks and their critical difference", _caption(result), k=k
        )


def _draw_scales(axes: Any, low: float, high: float, distance: float) -> None:
    """The axis of ranks, and above it a line as long as the critical difference."""
    axes.plot([low, high], [0, 0], color=INK, linewidth=1.0)
    for tick in range(int(low), int(high) + 1):
        axes.plot([tick, tick], [0, -0.08], color=INK, linewidth=1.0)
        axes.text(tick, -0.13, str(tick), ha="center", va="bottom", fontsize=8)
    axes.plot([low, low + distance], [-0.46, -0.46], color=INK, linewidth=1.0)
    for end in (low, low + distance):
        axes.plot([end, end], [-0.51, -0.41], color=INK, linewidth=1.0)
    axes.text(low - 0.02 * (high - low), -0.46, f"CD = {distance:.2f}", ha="right", va="center", fontsize=8)


def _draw_methods(axes: Any, result: CriticalDifference, styles: Styles, top: float) -> None:
    """A line from each method's rank to its name: the better half on the left, the others on the right."""
    names, high = list(result.ranks), float(len(result.ranks))
    left = names[: (len(names) + 1) // 2]
    right = names[len(left) :][::-1]
    for side, methods in ((-1, left), (1, right)):
        for row, method in enumerate(methods):
            y, x = top + _ROW * row, 0.95 if side < 0 else high + 0.05
            rank, style = result.ranks[method], styles[method]
            axes.plot([rank, rank, x], [0, y, y], color=style.colour, linewidth=1.3)
            axes.plot([rank], [0], color=style.colour, marker=style.marker or "o", markersize=5, clip_on=False)
            name = f"{method}  {rank:.2f}" if side < 0 else f"{rank:.2f}  {method}"
            align = "right" if side < 0 else "left"
            axes.text(x + side * 0.02 * (high - 1), y, name, ha=align, va="center", fontsize=8.5)


def _caption(result: CriticalDifference) -> str:
    """What the diagram shows and how it was made."""
    p = "p < 0.0001" if result.p < 0.0001 else f"p = {result.p:.4f}"
    seeds = f", means over {result.seeds} seeds" if result.seeds else ""
    test = f"Friedman's test over {result.datasets} datasets{seeds} ({p}, Iman and Davenport's form)"
    if not result.differ:
        return f"Average ranks, 1 is best. {test} finds no difference among these methods, so one bar joins all."
    bars = "Bars join methods that do not differ" if result.cliques else "All neighbours differ"
    return (
        f"Average ranks, 1 is best. {test} finds differences. {bars} by Nemenyi's test at alpha = {result.alpha:g}: "
        f"ranks closer than CD = {result.distance:.2f} do not differ. Ranks depend on which methods take part; the "
        "tests of single pairs do not."
    )
