"""The figures of a panel: accuracy against k, accuracy after each epoch, and accuracies or gains by dataset."""

from __future__ import annotations

import re
from collections.abc import Mapping

from orchestrator.report.build import dataset_count, k_title, panel_slug, seeds_words
from orchestrator.report.drawing import INK, FigureFile, canvas, finished
from orchestrator.report.epochs import Curves, epoch_mean, longest
from orchestrator.report.palette import NEUTRAL, Style
from orchestrator.report.panel import Panel
from orchestrator.report.statistics import summarize
from orchestrator.report.tables import DASH, signed


def accuracy_against_k(panel: Panel, styles: Mapping[str, Style]) -> FigureFile | None:
    """Mean accuracy over the panel's datasets against k; ``None`` where there are not two k to draw a line between."""
    if len(panel.ks) < 2:
        return None
    with canvas(5.6, _height(panel)) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        for method in panel.methods:
            means = [panel.mean(method, k).accuracy for k in panel.ks]
            ys = [mean.mean if mean else float("nan") for mean in means]
            style = styles[method]
            front = 2 if method in panel.fixed else 3
            axes.plot(
                panel.ks, ys, color=style.colour, linestyle=style.line, marker=style.marker or None,
                markersize=4.5, linewidth=1.8, label=method.lstrip("_") or method, zorder=front,
            )  # fmt: skip
            spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
            if method not in panel.fixed:
                low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                axes.fill_between(panel.ks, low, high, color=style.colour, alpha=_band_alpha(panel), linewidth=0)
        axes.set_xticks(panel.ks, [str(k) for k in panel.ks])
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel("mean accuracy over datasets (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(panel.methods)))
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"accuracy_{panel_slug(panel)}",
            title=f"Accuracy against k, {panel.title}",
            caption=_band_words(panel),
        )


def _height(panel: Panel) -> float:
    """Inches: the legend needs a line for every three methods."""
    return 3.75 + 0.17 * -(-len(panel.methods) // 3)


def _band_alpha(panel: Panel) -> float:
    """Many bands on top of each other hide what lies beneath."""
    return 0.16 if len(panel.methods) <= 6 else 0.08


def _band_words(panel: Panel) -> str:
    text = f"Mean over {dataset_count(panel)} datasets. "
    if len(panel.seeds) < 2:
        return text + "One seed, so there is no band: nothing here says how much another draw would differ."
    return text + (
        f"Bands: ± one sample standard deviation over n = {len(panel.seeds)} seeds of that mean. A point is missing "
        "where no seed has every dataset."
    )


def accuracy_after_epochs(panel: Panel, curves: Curves, k: int, styles: Mapping[str, Style]) -> FigureFile | None:
    """Mean accuracy over the targets after each epoch; ``None`` where no cell has a curve."""
    last = longest(panel, curves)
    if last < 2:
        return None
    with canvas(5.6, _height(panel)) as figure:
        axes = figure.add_subplot()
        epochs = list(range(1, last + 1))
        for method in panel.methods:
            means = [epoch_mean(panel, curves, method, k, epoch) for epoch in epochs]
            if not any(means):
                continue
            style = styles[method]
            ys = [mean.mean if mean else float("nan") for mean in means]
            axes.plot(
                epochs, ys, color=style.colour, linestyle=style.line, marker=style.marker or None, markersize=4.0,
                markevery=max(1, last // 10), linewidth=1.6, label=method.lstrip("_") or method,
            )  # fmt: skip
            if method not in panel.fixed:
                spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
                low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                axes.fill_between(epochs, low, high, color=style.colour, alpha=_band_alpha(panel), linewidth=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.7, last + 0.3)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel("epochs of adaptation")
        axes.set_ylabel("mean accuracy over targets (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=min(3, len(panel.methods)))
        silent = [method for method in panel.methods if epoch_mean(panel, curves, method, k, 1) is None]
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"epochs_{panel_slug(panel)}_k{k}",
            title=f"Accuracy after each epoch{f' at {k_title(k)}' if k else ''}, {panel.title}",
            caption=_band_words(panel) + (f" Without epochs: {', '.join(silent)}." if silent else ""),
        )


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
        axes.set_xticks(range(len(methods)), [m.lstrip("_") or m for m in methods], rotation=40, ha="right")
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
                    color=styles[method].colour, label=method.lstrip("_") or method,
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
        figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=min(7, len(methods) + 1))
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


def _wrapped(name: str, width: int = 16) -> str:
    """A dataset's name on two lines if it is long."""
    if len(name) <= width:
        return name
    cuts = [match.start() + 1 for match in re.finditer(r"[_\- ]", name)]
    cut = min(cuts, key=lambda c: abs(c - len(name) / 2), default=len(name) // 2)
    return f"{name[:cut]}\n{name[cut:].strip()}"
