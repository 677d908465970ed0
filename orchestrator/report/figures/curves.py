"""Curves of a panel: accuracy against k, and accuracy after each epoch of adaptation."""

from __future__ import annotations

from collections.abc import Sequence
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
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        labels: list[PointLabel] = []
        for method in panel.methods:
            means = [panel.mean(method, k).accuracy for k in panel.ks]
            zorder = 2 if method in panel.fixed else 3
            line = {"markersize": 4.5, "linewidth": 1.8, "zorder": zorder}
            labels += _plot_method(axes, study, panel, method, panel.ks, means, **line)
        axes.set_xticks(panel.ks, [str(k) for k in panel.ks])
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel("mean accuracy over datasets (%)")
        axes.set_xlim(panel.ks[0] / 1.15, panel.ks[-1] * (panel.ks[-1] / panel.ks[0]) ** 0.42)
        label_points(axes, labels, only_right=True)
        caption = f"Mean over {panel.dataset_count()}. {panel.deviation_text('Bands')}"
        if not all(panel.mean(method, k).accuracy for method in panel.methods for k in panel.ks):
            caption += " A point is missing where no seed has every dataset."
        return panel_figure(figure, panel, "accuracy", "Accuracy against k", caption, table="main")


def accuracy_after_epochs(study: Study, panel: Panel, k: int) -> FigureFile | None:
    """Mean accuracy over the targets after each epoch; ``None`` if no cell was scored after two epochs or more."""
    last = panel.last_epoch
    if last < 2:
        return None
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        epochs = list(range(1, last + 1))
        without_epochs: list[str] = []
        labels: list[PointLabel] = []
        for method in panel.methods:
            means = [panel.epoch_mean(method, k, epoch) for epoch in epochs]
            if means[0] is None:
                without_epochs.append(study.display_names[method])
            if not any(means):
                continue
            every = max(1, last // 10)
            line = {"markersize": 4.0, "linewidth": 1.6, "markevery": every}
            labels += _plot_method(axes, study, panel, method, epochs, means, **line)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.7, last + 0.4 * last)
        axes.grid(axis="y")
        axes.set_xlabel("epochs of adaptation")
        axes.set_ylabel("mean accuracy over targets (%)")
        label_points(axes, labels, only_right=True)
        caption = f"Mean over {panel.dataset_count()}. {panel.deviation_text('Bands')}"
        if without_epochs:
            caption += f" Without epochs: {', '.join(without_epochs)}."
        return panel_figure(figure, panel, "epochs", "Accuracy after each epoch", caption, k=k, table="epochs")


def _plot_method(
    axes: Any, study: Study, panel: Panel, method: str, xs: Sequence[int], means: Sequence[Summary | None], **line: Any
) -> list[PointLabel]:
    """Draw the means of one method in its style, with a band unless the method is fixed.

    Gives the method's name at the last point of its line, if it has any.
    """
    style, band = study.styles[method], 0.0 if method in panel.fixed else band_opacity(panel)
    plot_means(
        axes, xs, means, band=band, colour=style.colour, linestyle=style.line, marker=style.marker or None, **line
    )
    points = [(x, mean.mean) for x, mean in zip(xs, means, strict=True) if mean is not None]
    return [PointLabel(study.display_names[method], *point, style.colour) for point in points[-1:]]


def band_opacity(panel: Panel) -> float:
    """The opacity of a band. Many bands on top of each other would hide what is below them."""
    return 0.16 if len(panel.methods) <= 6 else 0.08
