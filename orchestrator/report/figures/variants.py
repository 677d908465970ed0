"""Figures of what a method's settings do: curves over settings that are numbers, and the effect of each variant."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.analysis.display_names import title_of
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.variants import SOURCES, numeric_settings, paired_difference, variants_of
from orchestrator.report.figures.curves import band_opacity
from orchestrator.report.figures.drawing import FigureFile, canvas, legend_below, panel_figure, plot_means
from orchestrator.report.notation import at_k, k_title
from orchestrator.report.styles import NEUTRAL

_LINES = ("-", "--", "-.", ":")


def accuracy_against_settings(study: Study, panel: Panel) -> Iterator[FigureFile]:
    """For each method with variants, accuracy against each setting that is a number, the other settings unchanged."""
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
    """For each method with variants, how much each variant differs from the method, paired by dataset and seed."""
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
