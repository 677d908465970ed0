"""Accuracies of a panel by dataset at one k: bars and a radar or, of many methods, a map of gains."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import panel_slug, seeds_words
from orchestrator.report.analysis.statistics import summarize
from orchestrator.report.figures.drawing import INK, FigureFile, canvas, finished, legend_below, legend_label
from orchestrator.report.styles import NEUTRAL, Style
from orchestrator.report.text import DASH, k_title, signed

_PER_LINE = 6
MOST_BARS = 8
"""With more methods, bars are too thin to be told apart, and a map of gains is drawn in their place."""


_LOSS_TO_GAIN = ("#f0a54a", "#f5f4f2", "#a79bd0")
"""Orange and purple stay apart for every reader, and are pale enough for numbers to be read on them."""


def by_dataset(panel: Panel, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Accuracy per dataset as bars or, of many methods, the gain over zero-shot as a map."""
    return dataset_bars(panel, k, styles) if len(panel.methods) <= MOST_BARS else gain_map(panel, k)


def gain_map(panel: Panel, k: int) -> FigureFile | None:
    """Datasets x methods at one k: the gain over zero-shot in points, coloured from a loss to a gain."""
    tests = panel.tests(k)
    methods = [m for m in panel.methods if m not in panel.fixed or any(r.gain for r in panel.rows if r.method == m)]
    gains = [[_gain(panel, k, test, method) for method in methods] for test in tests]
    known = [abs(gain) for line in gains for gain in line if gain is not None]
    if not known:
        return None
    from matplotlib.colors import LinearSegmentedColormap

    with canvas(2.0 + 0.5 * len(methods), 1.4 + 0.24 * len(tests)) as figure:
        axes = figure.add_subplot()
        # The strongest colours stand for the upper quartile and beyond: one collapse would else bleach all the rest.
        most = max(sorted(known)[len(known) * 3 // 4], 1.0)
        shades = [[float("nan") if gain is None else gain for gain in line] for line in gains]
        colours = LinearSegmentedColormap.from_list("gains", _LOSS_TO_GAIN)
        axes.pcolormesh(range(len(methods)), range(len(tests)), shades, cmap=colours, vmin=-most, vmax=most,
                        shading="nearest", edgecolors="white", linewidth=0.6)  # fmt: skip
        axes.invert_yaxis()
        for y, line in enumerate(gains):
            for x, gain in enumerate(line):
                text = DASH if gain is None else signed(gain, 1)
                axes.text(x, y, text, ha="center", va="center", fontsize=6.5, color="#000000")
        axes.set_xticks(range(len(methods)), [legend_label(m) for m in methods], rotation=40, ha="right")
        axes.set_yticks(range(len(tests)), list(tests))
        for side in axes.spines.values():
            side.set_visible(False)
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"gains_{panel_slug(panel)}_k{k}",
            title=f"Gain over zero-shot by dataset{f' at {k_title(k)}' if k else ''}, {panel.title}",
            caption=f"Points over the frozen backbone on the same images, means over seeds ({seeds_words(panel)}): "
            f"purple is a gain, orange a loss, full colour from {most:.1f} points. A dash: no result.",
            wide=True,
        )


def _gain(panel: Panel, k: int, test: str, method: str) -> float | None:
    rows = panel.seed_rows(method, k, test)
    return summarize([row.gain for row in rows.values()]).mean if rows else None


def dataset_bars(panel: Panel, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Accuracy per dataset at one k: a bar per method, from zero, with the zero-shot accuracy as a line across."""
    tests = panel.tests(k)
    methods = [m for m in panel.methods if m not in panel.fixed or any(r.gain for r in panel.rows if r.method == m)]
    methods = methods or list(panel.methods)
    if not tests:
        return None
    lines = -(-len(tests) // _PER_LINE)
    per_line = -(-len(tests) // lines)
    with canvas(9.0, 0.7 + 1.9 * lines) as figure:
        grid = figure.subplots(lines, 1, squeeze=False, sharey=True)[:, 0]
        width = 0.8 / len(methods)
        for line, axes in enumerate(grid):
            own = tests[line * per_line : (line + 1) * per_line]
            for place, method in enumerate(methods):
                scores = [panel.score(method, k, test) for test in own]
                xs = [i - 0.4 + width * (place + 0.5) for i in range(len(own))]
                axes.bar(
                    xs, [score.mean if score else 0.0 for score in scores], width=width * 0.92,
                    color=styles[method].colour, label=legend_label(method),
                )  # fmt: skip
                bars = [(x, s.mean, s.std) for x, s in zip(xs, scores, strict=True) if s and s.std is not None]
                if bars:
                    axes.errorbar(*zip(*((x, m) for x, m, _ in bars), strict=True), yerr=[b[2] for b in bars],
                                  fmt="none", ecolor=INK, elinewidth=0.8)  # fmt: skip
            frozen = [(i, zero) for i, test in enumerate(own) if (zero := panel.zero_shot(k, test)) is not None]
            axes.hlines([y for _, y in frozen], [i - 0.44 for i, _ in frozen], [i + 0.44 for i, _ in frozen],
                        color=NEUTRAL, linestyle="--", linewidth=1.4, label="zero-shot")  # fmt: skip
            axes.set_xticks(range(len(own)), [_wrapped(test) for test in own])
            axes.set_xlim(-0.5, per_line - 0.5)
            axes.grid(axis="y")
            axes.set_axisbelow(True)
            axes.set_ylim(0, 100)
            axes.set_ylabel("accuracy (%)")
        legend_below(figure, grid[0], columns=7)
        at = f" at {k_title(k)}" if k else ""
        seeds = len(panel.seeds)
        spread = f"Whiskers: ± one sample standard deviation over n = {seeds} seeds. " if seeds > 1 else "One seed. "
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"bars_{panel_slug(panel)}_k{k}",
            title=f"Accuracy by dataset{at}, {panel.title}",
            caption=spread + "Dashed: the frozen backbone with its text head on the same images.",
            wide=True,
        )


MOST_SPOKES = 40
"""With more test splits, a radar's names run into each other."""


def accuracy_radar(panel: Panel, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Accuracy per dataset at one k as a radar, one scale for all spokes; ``None`` for fewer than three datasets."""
    tests = panel.tests(k)
    if not 3 <= len(tests) <= MOST_SPOKES:
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
            style = styles[method]
            front = 2 if method in panel.fixed else 3
            axes.plot(
                [*angles, angles[0]], [*means, means[0]], color=style.colour, linestyle=style.line,
                marker=style.marker or None, markersize=3.5, linewidth=1.5, label=legend_label(method), zorder=front,
            )  # fmt: skip
        axes.set_ylim(low, high)
        axes.set_yticks([*range(int(low), int(high) + 1, 10)][1:])
        axes.tick_params(axis="y", labelsize=7)
        axes.set_rlabel_position(180 / len(tests))
        axes.set_xticks(angles, [_wrapped(test, 12) for test in tests])
        axes.tick_params(axis="x", labelsize=7.5, pad=6)
        axes.spines["polar"].set_visible(False)
        legend_below(figure, axes, columns=3)
        at = f" at {k_title(k)}" if k else ""
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"radar_{panel_slug(panel)}_k{k}",
            title=f"Accuracy by dataset{at} as a radar, {panel.title}",
            caption=f"Accuracy in per cent, means over seeds ({seeds_words(panel)}); the centre is "
            f"{low:.0f}, all spokes have one scale, and areas mean nothing. A line is open where a dataset is missing.",
        )


def _wrapped(name: str, width: int = 16) -> str:
    """A dataset's name on two lines if it is long."""
    if len(name) <= width:
        return name
    cuts = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    cut = min(cuts, key=lambda c: abs(c - len(name) / 2), default=len(name) // 2)
    return f"{name[:cut]}\n{name[cut:].strip()}"
