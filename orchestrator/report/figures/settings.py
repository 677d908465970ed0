"""What a method's settings do: curves over those that are numbers, differences for the rest.

Only one thing differs on each curve: a variant that changes two settings, or a setting and the sources, is on none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.curves import band_alpha
from orchestrator.report.figures.drawing import FigureFile, canvas, finished, legend_below
from orchestrator.report.figures.palette import NEUTRAL, Style
from orchestrator.report.tables.comparison import dataset_count, k_title, panel_slug

SOURCES = "sources"
_DASHES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Variant:
    """A label of a method.

    Attributes:
        sources: how many the rule gives it; ``None`` where targets differ.
        drawn: whether they may have been drawn at random: seeds do not share one choice of some of them.
    """

    label: str
    settings: Mapping[str, Any]
    rule: str
    sources: int | None
    drawn: bool

    def differences(self, other: Variant) -> list[str]:
        """The names of what differs."""
        keys = sorted(self.settings.keys() | other.settings.keys())
        found = [key for key in keys if self.settings.get(key) != other.settings.get(key)]
        return found + [SOURCES] * ((self.rule, self.sources) != (other.rule, other.sources))

    def number(self, key: str) -> float | None:
        """A setting as a number; ``None`` where it is none."""
        value = self.settings.get(key) if key != SOURCES else self.sources if self.drawn else None
        if isinstance(value, tuple | list) and len(value) == 1:
            value = value[0]
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def variants_of(study: Study, panel: Panel) -> dict[str, list[Variant]]:
    """By method, its labels in the panel, of methods that have several: the method as it is first."""
    if len({study.method_names[label] for label in panel.methods}) == len(panel.methods):
        return {}
    cells = {result.cell.id: result.cell for result in study.results}
    own: dict[str, list[Cell]] = {}
    for row in panel.rows:
        own.setdefault(row.method, []).append(cells[row.cell_id])
    found: dict[str, list[Variant]] = {}
    for label in panel.methods:
        counts, cell = {len(cell.sources) for cell in own[label]}, own[label][0]
        count = counts.pop() if len(counts) == 1 else None
        variant = Variant(label, cell.method.settings_dict(), cell.sources_rule, count, _drawn(own[label]))
        found.setdefault(cell.method.name, []).append(variant)
    for name, variants in found.items():
        variants.sort(key=lambda variant: variant.label != name)
        variants[0] = replace(variants[0], drawn=True)  # all there are
    return {name: variants for name, variants in found.items() if len(variants) > 1}


def _drawn(cells: Sequence[Cell]) -> bool:
    """Whether seeds have different sources; of one seed nobody can tell."""
    choices: dict[str, list[frozenset[str]]] = {}
    for cell in cells:
        choices.setdefault(f"{cell.dataset.name} {cell.shots}", []).append(frozenset(s.dataset for s in cell.sources))
    return any(len(set(own)) > 1 for own in choices.values()) or all(len(own) == 1 for own in choices.values())


def knobs_of(variants: Sequence[Variant]) -> dict[str, list[tuple[float, Variant]]]:
    """What is a number and alone differs from the first variant: at least two values of each, sorted."""
    base, knobs = variants[0], {}  # type: Variant, dict[str, list[tuple[float, Variant]]]
    for variant in variants[1:]:
        differing = variant.differences(base)
        if len(differing) == 1 and (value := variant.number(differing[0])) is not None:
            knobs.setdefault(differing[0], []).append((value, variant))
    for key, points in knobs.items():
        if (value := base.number(key)) is not None:
            points.append((value, base))
        points.sort(key=lambda point: point[0])
    return {key: points for key, points in knobs.items() if len(points) > 1}


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


def paired_difference(panel: Panel, label: str, base: str, k: int) -> Summary | None:
    """Mean difference over the averaged test splits per seed that both have, summarized over seeds."""
    tests = panel.tests(k, averaged=True)
    means = []
    for method in (label, base):
        rows = {test: panel.seed_rows(method, k, test) for test in tests}
        means.append(seed_means({test: {s: r.accuracy for s, r in own.items()} for test, own in rows.items()}, tests))
    both = [seed for seed in means[0] if seed in means[1]]
    return summarize([means[0][seed] - means[1][seed] for seed in both]) if both else None


def _at(panel: Panel) -> str:
    return f" at {k_title(panel.ks[0])}" if len(panel.ks) == 1 and panel.ks[0] else ""


def _bands(panel: Panel, what: str = "Bands", of: str = "means") -> str:
    if len(panel.seeds) < 2:
        return f"One seed, so there are no {what.lower()}: another draw may differ by more than what is seen here."
    return f"{what}: ± one sample standard deviation of those {of} over n = {len(panel.seeds)} seeds."
