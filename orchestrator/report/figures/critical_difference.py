"""The critical-difference diagram: average ranks on a line, with a bar over methods that do not differ."""

from __future__ import annotations

from orchestrator.report.analysis.critical_difference import CriticalDifference, critical_difference
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import panel_slug
from orchestrator.report.figures.drawing import INK, FigureFile, canvas, finished
from orchestrator.report.styles import Styles


def critical_difference_words(found: CriticalDifference) -> str:
    """What the diagram shows and how it was made."""
    p = "p < 0.0001" if found.p < 0.0001 else f"p = {found.p:.4f}"
    seeds = f", means over {found.seeds} seeds" if found.seeds else ""
    friedman_says = f"Friedman's test over {found.datasets} datasets{seeds} ({p}, Iman and Davenport's form)"
    if not found.differ:
        return (
            f"Average ranks, 1 is best. {friedman_says} finds no difference among these methods, so one bar joins all."
        )
    joined = "Bars join methods that do not differ" if found.cliques else "No two neighbours are too close to differ"
    return (
        f"Average ranks, 1 is best. {friedman_says} finds differences. {joined} by Nemenyi's test at alpha = "
        f"{found.alpha:g}: their ranks lie less than CD = {found.distance:.2f} apart. Ranks depend on which methods "
        "take part; the tests of single pairs do not."
    )


def critical_difference_figure(panel: Panel, k: int, styles: Styles) -> FigureFile | None:
    """The diagram at ``k``; ``None`` where :func:`critical_difference` gives a reason instead."""
    found = critical_difference(panel, k)
    if isinstance(found, str):
        return None
    names = list(found.ranks)
    left = names[: (len(names) + 1) // 2]
    right = names[len(left) :][::-1]
    step, top = 0.3, 0.45 + 0.16 * len(found.cliques)
    depth = top + step * len(left)
    with canvas(7.2, 0.75 + depth * 0.8) as figure:
        figure.set_layout_engine("none")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        low, high = 1.0, float(len(names))
        margin = 0.42 * (high - low)
        axes.set_xlim(low - margin, high + margin)
        axes.set_ylim(depth, -0.62)
        axes.plot([low, high], [0, 0], color=INK, linewidth=1.0)
        for tick in range(1, len(names) + 1):
            axes.plot([tick, tick], [0, -0.08], color=INK, linewidth=1.0)
            axes.text(tick, -0.13, str(tick), ha="center", va="bottom", fontsize=8)
        axes.plot([low, low + found.distance], [-0.46, -0.46], color=INK, linewidth=1.0)
        for end in (low, low + found.distance):
            axes.plot([end, end], [-0.51, -0.41], color=INK, linewidth=1.0)
        axes.text(low - 0.02 * (high - low), -0.46, f"CD = {found.distance:.2f}", ha="right", va="center", fontsize=8)
        for level, clique in enumerate(found.cliques):
            y = 0.2 + 0.16 * level
            ends = (found.ranks[clique[0]] - 0.03, found.ranks[clique[-1]] + 0.03)
            axes.plot(ends, [y, y], color=INK, linewidth=3.2, solid_capstyle="round")
        for side, own in ((-1, left), (1, right)):
            for place, method in enumerate(own):
                y, x = top + step * place, low - 0.05 if side < 0 else high + 0.05
                rank, style = found.ranks[method], styles[method]
                axes.plot([rank, rank, x], [0, y, y], color=style.colour, linewidth=1.3)
                axes.plot([rank], [0], color=style.colour, marker=style.marker or "o", markersize=5, clip_on=False)
                gap = side * 0.02 * (high - low)
                text = f"{method}  {rank:.2f}" if side < 0 else f"{rank:.2f}  {method}"
                axes.text(x + gap, y, text, ha="right" if side < 0 else "left", va="center", fontsize=8.5)
        at = f" at k = {k}" if k else ""
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"critical_difference_{panel_slug(panel)}_k{k}",
            title=f"Average ranks and their critical difference{at}, {panel.title}",
            caption=critical_difference_words(found),
        )
