"""Figures of what a method's settings do: curves over those that are numbers, differences for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, panel_slug
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.variants import SOURCES, knobs_of, paired_difference, variants_of
from orchestrator.report.figures.curves import band_alpha
from orchestrator.report.figures.drawing import FigureFile, canvas, finished, legend_below
from orchestrator.report.styles import NEUTRAL, Style
from orchestrator.report.text import k_title

_DASHES = ("-", "--", "-.", ":")


def accuracy_against_settings(study: Study, panel: Panel, styles: Mapping[str, Style]) -> Iterator[FigureFile]:
    """For each method with variants, accuracy against each setting that is a number, others as in the method itself."""
    for name, variants in variants_of(study, panel).items():
        knobs, base = knobs_of(variants), variants[0].label
        if not knobs:
            continue
        with canvas(0.8 + 2.7 * len(knobs), 3.1) as figure:
            grid = figure.subplots(1, len(knobs), sharey=True, squeeze=False)[0]
            colour, marker = styles[base].colour, styles[base].marker or "o"
            for axes, (key, points) in zip(grid, knobs.items(), strict=True):
                xs = [value for value, _ in points]
                for i, k in enumerate(panel.ks):
                    means = [panel.mean(variant.label, k).accuracy for _, variant in points]
                    if sum(mean is not None for mean in means) < 2:
                        continue
                    ys = [mean.mean if mean else float("nan") for mean in means]
                    spreads = [mean.std if mean and mean.std is not None else float("nan") for mean in means]
                    dash = _DASHES[i % len(_DASHES)]
                    axes.plot(xs, ys, color=colour, marker=marker, markersize=4.5, linestyle=dash, label=k_title(k))
                    low = [y - spread for y, spread in zip(ys, spreads, strict=True)]
                    high = [y + spread for y, spread in zip(ys, spreads, strict=True)]
                    axes.fill_between(xs, low, high, color=colour, alpha=band_alpha(panel), linewidth=0)
                    plain = panel.mean(base, k).accuracy
                    if plain:
                        axes.axhline(plain.mean, color=NEUTRAL, linewidth=1.0, linestyle=":", zorder=1)
                axes.set_xlabel("number of sources" if key == SOURCES else key.replace("_", " "))
                axes.set_xticks(sorted(set(xs)), [f"{x:g}" for x in sorted(set(xs))])
                axes.grid(axis="y")
                axes.set_axisbelow(True)
            grid[0].set_ylabel("mean accuracy over datasets (%)")
            if len(panel.ks) > 1:
                legend_below(figure, max(grid, key=lambda axes: len(axes.get_legend_handles_labels()[1])), columns=6)
            yield finished(
                figure,
                selected=panel.selects_on_test,
                name=f"settings_{name}_{panel_slug(panel)}",
                title=f"Accuracy against the settings of {name}, {panel.title}",
                caption=f"One setting at a time{_at(panel)}, mean over {dataset_count(panel)}. "
                f"{_bands(panel)} Dotted: {base} as it is.",
                wide=len(knobs) > 2,
            )


def effects_of_settings(study: Study, panel: Panel, styles: Mapping[str, Style]) -> Iterator[FigureFile]:
    """For each method with variants, the difference that every one of them makes, paired by dataset and seed."""
    for name, variants in variants_of(study, panel).items():
        base = variants[0].label
        for k in panel.ks:
            made = [(v.label, gained) for v in variants[1:] if (gained := paired_difference(panel, v.label, base, k))]
            if not made:
                continue
            with canvas(5.6, 1.0 + 0.22 * len(made)) as figure:
                axes = figure.add_subplot()
                for y, (label, gained) in enumerate(made):
                    style = styles[label]
                    axes.errorbar(
                        [gained.mean], [y], xerr=[gained.std or 0.0], color=styles[base].colour,
                        marker=style.marker or "o", markersize=5, elinewidth=1.2, linestyle="none",
                    )  # fmt: skip
                axes.axvline(0, color=NEUTRAL, linewidth=1.2, linestyle="--", zorder=1)
                axes.set_yticks(range(len(made)), [label for label, _ in made])
                axes.invert_yaxis()
                axes.grid(axis="x")
                axes.set_axisbelow(True)
                axes.set_xlabel(f"accuracy minus that of {base} (points)")
                yield finished(
                    figure,
                    selected=panel.selects_on_test,
                    name=f"variants_{name}_{panel_slug(panel)}_k{k}",
                    title=f"What the variants of {name} change{f' at {k_title(k)}' if k else ''}, {panel.title}",
                    caption=f"For each seed the mean difference over {dataset_count(panel)} on the same "
                    f"supports, then the mean over seeds. {_bands(panel, 'Whiskers', 'differences')}",
                )


def _at(panel: Panel) -> str:
    return f" at {k_title(panel.ks[0])}" if len(panel.ks) == 1 and panel.ks[0] else ""


def _bands(panel: Panel, what: str = "Bands", of: str = "means") -> str:
    if len(panel.seeds) < 2:
        return f"One seed, so there are no {what.lower()}: another draw may differ by more than what is seen here."
    return f"{what}: ± one sample standard deviation of those {of} over n = {len(panel.seeds)} seeds."
