"""Curves of a panel: accuracy against k, after each epoch, and against the settings of a method's variants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.variants import SOURCES, numeric_settings, paired_difference, variants_of
from orchestrator.report.figures.drawing import FigureFile, canvas, legend_below, panel_figure, plot_means
from orchestrator.report.figures.labels import PointLabel, label_points
from orchestrator.report.notation import at_k, k_title
from orchestrator.report.styles import NEUTRAL


def accuracy_against_k(study: Study, panel: Panel) -> FigureFile | None:
    """Draw mean accuracy over datasets against k, a line for each method; ``None`` if there are fewer than two k."""
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
    """Draw mean accuracy over the targets after each epoch; ``None`` if no cell was scored after two or more."""
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
    """Return the opacity of a band. Many bands on top of each other would hide what is below them."""
    return 0.16 if len(panel.methods) <= 6 else 0.08


_LINES = ("-", "--", "-.", ":")


def accuracy_against_settings(study: Study, panel: Panel) -> Iterator[FigureFile]:
    """Draw each method's accuracy against each of its settings that is a number, the other settings unchanged."""
    for name, variants in variants_of(study, panel).items():
        settings, base = numeric_settings(variants), variants[0].label
        if not settings:
            continue
        with canvas(0.8 + 2.7 * len(settings), 3.1) as figure:
            grid = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
            style = study.styles[base]
            for axes, (key, points) in zip(grid, settings.items(), strict=True):
                xs = [value for value, _ in points]
                for i, k in enumerate(panel.ks):
                    means = [panel.mean(variant.label, k) for _, variant in points]
                    if sum(mean is not None for mean in means) < 2:
                        continue
                    plot_means(
                        axes, xs, means, band=band_opacity(panel), colour=style.colour, marker=style.marker or "o",
                        markersize=4.5, linestyle=_LINES[i % len(_LINES)], label=k_title(k),
                    )  # fmt: skip
                    unchanged = panel.mean(base, k)
                    if unchanged:
                        axes.axhline(unchanged.mean, color=NEUTRAL, linewidth=1.0, linestyle=":", zorder=1)
                axes.set_xlabel("number of sources" if key == SOURCES else key.replace("_", " "))
                axes.set_xticks(sorted(set(xs)), [f"{x:g}" for x in sorted(set(xs))])
                axes.grid(axis="y")
            grid[0].set_ylabel("mean accuracy over datasets (%)")
            if len(panel.ks) > 1:
                legend_below(figure, max(grid, key=lambda axes: len(axes.get_legend_handles_labels()[1])), columns=6)
            at = at_k(panel.ks[0]) if len(panel.ks) == 1 else ""
            caption = (
                f"One setting at a time{at}, mean over {panel.dataset_count()}. "
                f"{panel.deviation_text('Bands', 'those means')} Dotted: {study.display_names[base]} as it is."
            )
            title = f"Accuracy against the settings of {title_of(name)}"
            yield panel_figure(figure, panel, f"settings_{name}", title, caption, wide=len(settings) > 2)


def effects_of_variants(study: Study, panel: Panel) -> Iterator[FigureFile]:
    """Draw how much each variant of a method differs from the method, paired by dataset and seed."""
    for name, variants in variants_of(study, panel).items():
        base = variants[0].label
        for k in panel.ks:
            effects = [(v.label, mean) for v in variants[1:] if (mean := paired_difference(panel, v.label, base, k))]
            if not effects:
                continue
            with canvas(5.6, 1.0 + 0.22 * len(effects)) as figure:
                axes = figure.add_subplot()
                for y, (label, mean) in enumerate(effects):
                    axes.errorbar(
                        [mean.mean], [y], xerr=[mean.std or 0.0], color=study.styles[base].colour,
                        marker=study.styles[label].marker or "o", markersize=5, elinewidth=1.2, linestyle="none",
                    )  # fmt: skip
                axes.axvline(0, color=NEUTRAL, linewidth=1.2, linestyle="--", zorder=1)
                axes.set_yticks(range(len(effects)), [study.display_names[label] for label, _ in effects])
                axes.invert_yaxis()
                axes.grid(axis="x")
                axes.set_xlabel(f"accuracy minus that of {study.display_names[base]} (points)")
                caption = (
                    f"For each seed the mean difference over {panel.dataset_count()} on the same "
                    f"supports, then the mean over seeds. {panel.deviation_text('Whiskers', 'those differences')}"
                )
                title = f"What the variants of {title_of(name)} change"
                yield panel_figure(figure, panel, f"variants_{name}", title, caption, k=k)
