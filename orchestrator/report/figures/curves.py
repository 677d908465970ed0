"""Curves of a panel: accuracy against k, and accuracy after each epoch of adaptation."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.report.analysis.epochs import Curves, epoch_mean, longest
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, panel_slug
from orchestrator.report.figures.drawing import FigureFile, canvas, finished, legend_below, legend_label
from orchestrator.report.styles import Style
from orchestrator.report.text import k_title


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
                markersize=4.5, linewidth=1.8, label=legend_label(method), zorder=front,
            )  # fmt: skip
            spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
            if method not in panel.fixed:
                low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                axes.fill_between(panel.ks, low, high, color=style.colour, alpha=band_alpha(panel), linewidth=0)
        axes.set_xticks(panel.ks, [str(k) for k in panel.ks])
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel("mean accuracy over datasets (%)")
        legend_below(figure, axes, columns=3)
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


def band_alpha(panel: Panel) -> float:
    """Many bands on top of each other hide what lies beneath."""
    return 0.16 if len(panel.methods) <= 6 else 0.08


def _band_words(panel: Panel) -> str:
    text = f"Mean over {dataset_count(panel)}. "
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
                markevery=max(1, last // 10), linewidth=1.6, label=legend_label(method),
            )  # fmt: skip
            if method not in panel.fixed:
                spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
                low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                axes.fill_between(epochs, low, high, color=style.colour, alpha=band_alpha(panel), linewidth=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.7, last + 0.3)
        axes.grid(axis="y")
        axes.set_axisbelow(True)
        axes.set_xlabel("epochs of adaptation")
        axes.set_ylabel("mean accuracy over targets (%)")
        legend_below(figure, axes, columns=3)
        silent = [method for method in panel.methods if epoch_mean(panel, curves, method, k, 1) is None]
        return finished(
            figure,
            selected=panel.selects_on_test,
            name=f"epochs_{panel_slug(panel)}_k{k}",
            title=f"Accuracy after each epoch{f' at {k_title(k)}' if k else ''}, {panel.title}",
            caption=_band_words(panel) + (f" Without epochs: {', '.join(silent)}." if silent else ""),
        )
