"""Figures of one finished cell: confusion matrix, training curves, coefficients, and the overlap of its sources.

Shape legend: C classes, r coefficients.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orchestrator.models.inspection import Overlap
from orchestrator.report.figures.drawing import FigureFile, canvas, finished, heat_map, legend_below
from orchestrator.report.styles import NEUTRAL

MOST_CLASSES = 60
"""The largest number of classes for which the confusion matrix is drawn. A table lists the most confused classes,
however many there are."""
_PALE_TO_PURPLE = ("#f5f4f2", "#3b2a7d")
_TRAINED = "#d55e00"
_CURVE_TITLES = {"train_loss": "training loss", "accuracy": "test accuracy (%)"}


def confusion_matrix(counts_CC: NDArray[np.int64], names: Sequence[str], dataset: str) -> FigureFile | None:
    """Draw the confusion matrix in per cent of each true class; ``None`` for more than ``MOST_CLASSES`` classes."""
    if (classes := len(names)) > MOST_CLASSES:
        return None
    shares_CC = 100 * counts_CC / counts_CC.sum(1, keepdims=True).clip(min=1)
    side = 2.2 + 0.2 * max(classes, 8)
    with canvas(side, side) as figure:
        axes = figure.add_subplot()
        _heat_map(axes, shares_CC, names, 0, 100, "{:.0f}" if classes <= 20 else "")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        caption = "Per cent of the images of each true class (rows) that the model assigns to each class (columns)."
        return finished(figure, f"confusion_{dataset}", f"Confusion matrix, {dataset}", caption, wide=classes > 24)


def training_curves(curves: Mapping[str, Sequence[float]]) -> FigureFile | None:
    """Draw a plot over the epochs for every number that the training recorded; ``None`` for fewer than two epochs."""
    if max(map(len, curves.values()), default=0) < 2:
        return None
    with canvas(0.4 + 3.0 * len(curves), 2.5) as figure:
        for axes, (name, values) in zip(figure.subplots(1, len(curves), squeeze=False)[0], curves.items(), strict=True):
            marker = "o" if len(values) <= 30 else ""
            axes.plot(range(1, len(values) + 1), values, color=_TRAINED, linewidth=1.5, marker=marker, markersize=3)
            axes.set_title(_CURVE_TITLES.get(name, name.replace("_", " ")), fontsize=8.5)
            axes.set_xlabel("epoch")
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(axis="y")
        caption = "The mean training loss of each epoch, and the other numbers that the method recorded."
        return finished(figure, "curves", "Training curves", caption)


def coefficient_spectra(
    coefficients: Mapping[str, tuple[NDArray[np.float64] | None, NDArray[np.float64]]],
) -> FigureFile | None:
    """Draw the sorted absolute values of each weight matrix's coefficients, before and after training.

    Args:
        coefficients: matrix name -> (before, after), each (r,); ``before`` is ``None`` if it is unknown.

    Returns ``None`` without coefficients.
    """
    if not coefficients:
        return None
    columns = min(len(coefficients), 4)
    lines = -(-len(coefficients) // columns)
    with canvas(9.0, 0.8 + 1.25 * lines) as figure:
        plots = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, (name, (before, after)) in zip(plots, coefficients.items(), strict=False):
            if before is not None:
                pooled = sorted(abs(before), reverse=True)
                axes.plot(pooled, color=NEUTRAL, linestyle="--", linewidth=1.3, label="pooled and scaled")
            axes.plot(sorted(abs(after), reverse=True), color=_TRAINED, linewidth=1.3, label="trained")
            axes.set_title(short_name(name), fontsize=7.5)
            axes.grid(axis="y")
        for axes in plots[len(coefficients) :]:
            axes.set_axis_off()
        legend_below(figure, plots[0], columns=2)
        caption = (
            "Absolute values |s| of the coefficients, the largest first, each curve sorted by itself: before training "
            "(pooled over the sources and scaled by alpha) and after it."
        )
        return finished(figure, "coefficients", "Coefficients of each weight matrix", caption, wide=True)


def overlap_map(overlap: Overlap | None) -> FigureFile | None:
    """Draw a map, sources x sources, of how much the leading directions of two sources span the same space.

    The colours go from the smallest to the largest overlap of two different sources. The diagonal is 1 everywhere and
    stays empty. ``None`` for fewer than two sources.
    """
    if overlap is None or len(overlap.sources) < 2:
        return None
    values, names = overlap.values, overlap.sources
    different = [values[i][j] for i in range(len(names)) for j in range(i)]
    low, high = min(different), max(different)
    shown = [[value if i != j else float("nan") for j, value in enumerate(row)] for i, row in enumerate(values)]
    side = 2.6 + 0.3 * len(names)
    with canvas(side + 0.6, side) as figure:
        axes = figure.add_subplot()
        _heat_map(axes, shown, names, low, high, "{:.2f}" if len(names) <= 20 else "")
        bar = figure.colorbar(axes.collections[0], ax=axes, shrink=0.7, pad=0.02)
        bar.ax.tick_params(labelsize=6.5)
        bar.outline.set_visible(False)
        caption = (
            f"Mean squared cosine of the principal angles between the leading {overlap.directions} directions of two "
            "sources, over the left and right directions of all weight matrices: 1 for the same space, 0 for "
            f"orthogonal spaces, {overlap.random:.2f} on average for random spaces. The colours go from the smallest "
            f"overlap of two sources, {low:.2f}, to the largest, {high:.2f}."
        )
        return finished(figure, "overlap", "Overlap between the sources' subspaces", caption)


def short_name(matrix: str) -> str:
    """Shorten ``transformer.resblocks.3.mlp.c_fc.weight`` to ``3 mlp.c_fc``."""
    in_block = matrix.removeprefix("transformer.resblocks.").removeprefix("trunk.blocks.")
    return in_block.removesuffix(".weight").replace(".", " ", 1)


def _heat_map(axes: Any, values: Any, names: Sequence[str], low: float, high: float, form: str) -> None:
    """Draw a square heat map with names on both sides; ``form`` is the format of the numbers in it, empty for none.

    Values that are not numbers stay empty.
    """
    count, span = len(names), (high - low) or 1.0
    size = 6.5 if count <= 30 else 4.5
    heat_map(
        axes, values, colours=_PALE_TO_PURPLE, low=low, high=low + span, edge=0.4, rows=names, columns=names,
        rotation=60, fontsize=size,
    )  # fmt: skip
    axes.set_aspect("equal")
    for y in range(count if form else 0):
        for x in range(count):
            if (value := values[y][x]) == value:
                ink = "#ffffff" if value > low + 0.5 * span else "#000000"
                axes.text(x, y, form.format(value), ha="center", va="center", fontsize=size - 0.5, color=ink)
