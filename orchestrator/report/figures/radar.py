"""Accuracy by dataset as a radar: a spoke for each dataset, a line for each method."""

from __future__ import annotations

import math

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.by_dataset import on_two_lines
from orchestrator.report.figures.drawing import FigureFile, canvas, legend_below, panel_figure

MOST_SPOKES = 40
"""With more test splits, the names around a radar overlap."""


def accuracy_radar(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Accuracy per dataset at one k, one scale for all spokes, as the paper draws it.

    ``None`` for fewer than three test splits, and where the paper prints no number of the panel.
    """
    tests = panel.tests(k)
    if all(row.published is None for row in panel.rows) or not 3 <= len(tests) <= MOST_SPOKES:
        return None
    scores = {method: [panel.score(method, k, test) for test in tests] for method in panel.methods}
    known = [score.mean for own in scores.values() for score in own if score]
    if not known:
        return None
    low, high = max(0.0, 10 * math.floor((min(known) - 2) / 10)), 10 * math.ceil(max(known) / 10)
    angles = [2 * math.pi * i / len(tests) for i in range(len(tests))]
    with canvas(5.6, 5.4 + 0.17 * -(-len(panel.methods) // 3)) as figure:
        axes = figure.add_subplot(projection="polar")
        axes.set_theta_zero_location("N")
        axes.set_theta_direction(-1)
        for method, own in scores.items():
            means = [score.mean if score else float("nan") for score in own]
            style = study.styles[method]
            axes.plot(
                [*angles, angles[0]], [*means, means[0]], color=style.colour, linestyle=style.line,
                marker=style.marker or None, markersize=3.5, linewidth=1.5, label=study.display_names[method],
                zorder=2 if method in panel.fixed else 3,
            )  # fmt: skip
        axes.set_ylim(low, high)
        axes.set_yticks([*range(int(low), int(high) + 1, 10)][1:])
        axes.tick_params(axis="y", labelsize=7)
        axes.set_rlabel_position(180 / len(tests))
        axes.set_xticks(angles, [on_two_lines(test, 12) for test in tests])
        axes.tick_params(axis="x", labelsize=7.5, pad=6)
        axes.spines["polar"].set_visible(False)
        legend_below(figure, axes, columns=3)
        caption = (
            f"Accuracy in per cent, means over seeds ({panel.seeds_text}); the centre is {low:.0f}, all "
            "spokes have one scale, and areas mean nothing. A line is open where a dataset is missing."
        )
        return panel_figure(figure, panel, "radar", "Accuracy by dataset as a radar", caption, k=k, table="datasets")
