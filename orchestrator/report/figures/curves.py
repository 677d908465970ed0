"""Curves of a panel: accuracy against k, and accuracy after each epoch of adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import FigureFile, canvas, panel_figure, plot_means
from orchestrator.report.figures.labels import PointLabel, label_points


def accuracy_against_k(study: Study, panel: Panel) -> FigureFile | None:
    """Mean accuracy over datasets against k, a line for each method; ``None`` if there are fewer than two k."""
    if len(panel.ks) < 2:
        return None
    means = {method: [panel.mean(method, k) for k in panel.ks] for method in panel.methods}
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.ks, [str(k) for k in panel.ks])
        axes.minorticks_off()
        axes.set_xlim(panel.ks[0] / 1.15, panel.ks[-1] * (panel.ks[-1] / panel.ks[0]) ** 0.42)
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel("mean accuracy over datasets (%)")
        _draw_lines(axes, study, panel, panel.ks, means, zorder=3, markersize=4.5, linewidth=1.8)
        caption = f"Mean over {panel.dataset_count()}. {panel.deviation_text('Bands')}"
        if not all(chain(*means.values())):
            caption += " A point is missing where no seed has every dataset."
        return panel_figure(figure, panel, "accuracy", "Accuracy against k", caption, table="main")


def accuracy_after_epochs(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Mean accuracy over the targets after each epoch; ``None`` if no cell was scored after two epochs or more."""
    last = panel.last_epoch
    if last < 2:
        return None
    epochs = range(1, last + 1)
    means = {method: [panel.epoch_mean(method, k, epoch) for epoch in epochs] for method in panel.methods}
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.7, last + 0.4 * last)
        axes.set_xlabel("epochs of adaptation")
        axes.set_ylabel("mean accuracy over targets (%)")
        drawn, every = {method: own for method, own in means.items() if any(own)}, max(1, last // 10)
        _draw_lines(axes, study, panel, epochs, drawn, zorder=2, markersize=4.0, linewidth=1.6, markevery=every)
        caption = f"Mean over {panel.dataset_count()}. {panel.deviation_text('Bands')}"
        if without := [study.display_names[method] for method, own in means.items() if own[0] is None]:
            caption += f" Without epochs: {', '.join(without)}."
        return panel_figure(figure, panel, "epochs", "Accuracy after each epoch", caption, k=k, table="epochs")


def _draw_lines(
    axes: Any, study: Study, panel: Panel, xs: Sequence[int], means: Mapping[str, Sequence[Summary | None]], *,
    zorder: int, **line: Any,
) -> None:  # fmt: skip
    """Draw the means of every method in its style, with its name at the end, and a band unless the method is fixed.

    ``zorder`` is that of the lines of methods that are not fixed, and ``line`` has matplotlib's settings of all lines.
    """
    labels = []
    for method, own in means.items():
        style, fixed = study.styles[method], method in panel.fixed
        plot_means(
            axes, xs, own, band=0.0 if fixed else band_opacity(panel), colour=style.colour, linestyle=style.line,
            marker=style.marker or None, zorder=2 if fixed else zorder, **line,
        )  # fmt: skip
        points = [(x, mean.mean) for x, mean in zip(xs, own, strict=True) if mean is not None]
        labels += [PointLabel(study.display_names[method], *point, style.colour) for point in points[-1:]]
    axes.grid(axis="y")
    label_points(axes, labels, only_right=True)


def band_opacity(panel: Panel) -> float:
    """The opacity of a band. Many bands on top of each other would hide what is below them."""
    return 0.16 if len(panel.methods) <= 6 else 0.08
