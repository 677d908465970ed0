"""Curves of a group: accuracy against k, after each epoch, and against the settings of a method's variants."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.analysis.variants import SOURCES, numeric_settings, paired_difference, variants_of
from orchestrator.report.figures.drawing import FigureFile, canvas, group_figure, legend_below, plot_means
from orchestrator.report.figures.labels import PointLabel, label_points
from orchestrator.report.styles import LINES, MARKERS, NEUTRAL, at_k, k_title


def accuracy_against_k(grid: GridResults, group: ComparisonGroup) -> FigureFile | None:
    """Draw mean accuracy over datasets against k, a line for each method; ``None`` if there are fewer than two k."""
    if len(group.ks) < 2:
        return None
    means = {method: [group.mean(method, k) for k in group.ks] for method in group.methods}
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log", base=2)
        axes.set_xticks(group.ks, [str(k) for k in group.ks])
        axes.minorticks_off()
        axes.set_xlim(group.ks[0] / 1.15, group.ks[-1] * (group.ks[-1] / group.ks[0]) ** 0.42)
        axes.set_xlabel("labelled images per class (k)")
        axes.set_ylabel(f"mean {group.metric.title} over datasets (%)")
        _draw_lines(axes, grid, group, group.ks, means, zorder=3, markersize=4.5, linewidth=1.8)
        caption = f"Mean {group.mean_text} over {group.dataset_count()}. {group.deviation_text('Bands')}"
        caption += group.uneven_text
        if not all(chain(*means.values())):
            caption += " A point is missing where no seed has every dataset."
        return group_figure(figure, group, "accuracy", f"{group.metric.heading} against k", caption, table="main")


def accuracy_after_epochs(grid: GridResults, group: ComparisonGroup, k: int) -> FigureFile | None:
    """Draw mean accuracy over the targets after each epoch; ``None`` if no cell has two epochs."""
    if (last := group.last_epoch) < 2:
        return None
    epochs = range(1, last + 1)
    means = {method: [group.epoch_mean(method, k, epoch) for epoch in epochs] for method in group.methods}
    with canvas(5.6, 3.75) as figure:
        axes = figure.add_subplot()
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(0.7, last + 0.4 * last)
        axes.set_xlabel("epochs of adaptation")
        axes.set_ylabel("mean accuracy over targets (%)")
        drawn, every = {method: own for method, own in means.items() if any(own)}, max(1, last // 10)
        _draw_lines(axes, grid, group, epochs, drawn, zorder=2, markersize=4.0, linewidth=1.6, markevery=every)
        caption = f"Mean over {group.dataset_count()}. {group.deviation_text('Bands')}"
        if without := [grid.display_names[method] for method, own in means.items() if own[0] is None]:
            caption += f" Without epochs: {', '.join(without)}."
        return group_figure(figure, group, "epochs", "Accuracy after each epoch", caption, k=k, table="epochs")


def _draw_lines(
    axes: Any, grid: GridResults, group: ComparisonGroup, xs: Sequence[int],
    means: Mapping[str, Sequence[Summary | None]], *, zorder: int, **line: Any,
) -> None:  # fmt: skip
    """Draw a line for every method, with its name at the end and a band of ± one deviation.

    A fixed method draws nothing at random, so it has no band.

    Args:
        zorder: matplotlib's drawing order for the lines of the methods that are not fixed.
        line: matplotlib's settings for all lines.
    """
    labels = []
    for method, own in means.items():
        style, fixed = grid.styles[method], method in group.fixed
        band = 0.0 if fixed else band_opacity(group)
        plot_means(axes, xs, own, band=band, zorder=2 if fixed else zorder, **style, **line)
        points = [(x, mean.mean) for x, mean in zip(xs, own, strict=True) if mean is not None]
        labels += [PointLabel(grid.display_names[method], *point, style["color"]) for point in points[-1:]]
    axes.grid(axis="y")
    label_points(axes, labels, only_right=True)


def band_opacity(group: ComparisonGroup) -> float:
    """Return the opacity of bands: less for many methods, because bands on top of each other hide the lines."""
    return 0.16 if len(group.methods) <= 6 else 0.08


def accuracy_against_settings(grid: GridResults, group: ComparisonGroup) -> Iterator[FigureFile]:
    """Draw each method's accuracy against each of its numeric settings, with the other settings unchanged."""
    for name, variants in variants_of(grid, group).items():
        settings, base = numeric_settings(variants), variants[0].label
        if not settings:
            continue
        with canvas(0.8 + 2.7 * len(settings), 3.1) as figure:
            plots = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
            colour = grid.styles[base]["color"]
            for axes, (key, points) in zip(plots, settings.items(), strict=True):
                xs = [value for value, _ in points]
                for i, k in enumerate(group.ks):
                    means = [group.mean(variant.label, k) for _, variant in points]
                    if sum(mean is not None for mean in means) < 2:
                        continue
                    plot_means(
                        axes, xs, means, band=band_opacity(group), color=colour,
                        marker=MARKERS[i % len(MARKERS)], markersize=4.5, linestyle=LINES[i % len(LINES)],
                        label=k_title(k),
                    )  # fmt: skip
                    if unchanged := group.mean(base, k):
                        axes.axhline(unchanged.mean, color=NEUTRAL, linewidth=1.0, linestyle=":", zorder=1)
                axes.set_xlabel("number of sources" if key == SOURCES else key.replace("_", " "))
                axes.set_xticks(sorted(set(xs)), [f"{x:g}" for x in sorted(set(xs))])
                axes.grid(axis="y")
            plots[0].set_ylabel(f"mean {group.metric.title} over datasets (%)")
            if len(group.ks) > 1:
                legend_below(figure, max(plots, key=lambda axes: len(axes.get_legend_handles_labels()[1])), columns=6)
            at = at_k(group.ks[0]) if len(group.ks) == 1 else ""
            caption = (
                f"One setting at a time{at}, mean over {group.dataset_count()}. "
                f"{group.deviation_text('Bands', 'those means')} Dotted: {grid.display_names[base]} as it is."
            )
            title = f"{group.metric.heading} against the settings of {title_of(name)}"
            yield group_figure(figure, group, f"settings_{name}", title, caption, wide=len(settings) > 2)


def effects_of_variants(grid: GridResults, group: ComparisonGroup) -> Iterator[FigureFile]:
    """Draw the score of each variant minus that of its method, paired by dataset and seed."""
    for name, variants in variants_of(grid, group).items():
        base = variants[0].label
        for k in group.ks:
            effects = [(v.label, mean) for v in variants[1:] if (mean := paired_difference(group, v.label, base, k))]
            if not effects:
                continue
            with canvas(5.6, 1.0 + 0.22 * len(effects)) as figure:
                axes = figure.add_subplot()
                for y, (label, mean) in enumerate(effects):
                    axes.errorbar(
                        [mean.mean], [y], xerr=[mean.std or 0.0], color=grid.styles[base]["color"],
                        marker=grid.styles[label]["marker"] or "o", markersize=5, elinewidth=1.2, linestyle="none",
                    )  # fmt: skip
                axes.axvline(0, color=NEUTRAL, linewidth=1.2, linestyle="--", zorder=1)
                axes.set_yticks(range(len(effects)), [grid.display_names[label] for label, _ in effects])
                axes.invert_yaxis()
                axes.grid(axis="x")
                axes.set_xlabel(f"{group.metric.title} minus that of {grid.display_names[base]} (points)")
                caption = (
                    f"A point is the mean over seeds of the mean difference over {group.dataset_count()} on the same "
                    f"supports. {group.deviation_text('Whiskers', 'those differences')}"
                )
                title = f"What the variants of {title_of(name)} change"
                yield group_figure(figure, group, f"variants_{name}", title, caption, k=k)
