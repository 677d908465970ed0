"""What methods cost: accuracy against costs as a table and as figures, and the images per class for the same accuracy.

A method is on the Pareto frontier if no cheaper method is better.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from orchestrator.analysis.costs import costs_of, frontier
from orchestrator.analysis.data_efficiency import Images, images_to_reach
from orchestrator.analysis.seed_means import Summary
from orchestrator.analysis.verdict import Verdict
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.figures.by_dataset import drawn_ks
from orchestrator.report.figures.drawing import FAINT, FigureFile, canvas, group_figure
from orchestrator.report.figures.labels import PointLabel, label_points
from orchestrator.report.styles import DASH, NEUTRAL, k_title
from orchestrator.report.tables.common import group_table, method_entry, summary_entry
from orchestrator.report.tables.table import Entry, Table, number
from orchestrator.util.units import listed

_KINDS = {
    "operations": ("fewer operations", "operations to adapt (passes of an image)"),
    "seconds": ("fewer seconds", "seconds to adapt"),
    "memory": ("less memory", "peak memory (MiB)"),
    "parameters": ("fewer trainable parameters", "trainable parameters"),
}
"""Kind of cost -> words for a lower cost, and the title of the axis."""
_UNITS = {"memory": 2.0**20}
_SHORTEST = 1e-3
"""Seconds. Shorter times are drawn as this time."""
_REFERENCES = 3
"""The table of images per class has at most this many columns of references, which are methods of the best set."""
_NOTE = (
    "Means are compared without their intervals. Costs are medians over cells; two costs that differ by a factor of at "
    "most 1.25 count as equal."
)


def frontier_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table | None:
    """Make the table of methods at one k: the Pareto frontiers that each is on, its mean and its costs.

    ``None`` if fewer than two methods have a mean.
    """
    means, verdict = _means(group, k), _verdict(grid, group, k)
    if len(means) < 2:
        return None
    found = _frontiers(group, means, verdict)
    rows = []
    for method, mean in sorted(means.items(), key=lambda item: -group.metric.sign * item[1].mean):
        kinds = [_KINDS[kind][0] for kind, own in found.items() if method in own]
        cost = verdict.cost(method)
        rows.append(
            (
                method_entry(grid, method),
                Entry(", ".join(kinds) or DASH),
                summary_entry(group, method, mean),
                number(cost.operations, ",.0f"),
                number(cost.seconds),
                number(cost.memory / 2**20 if cost.memory is not None else None, ",.0f"),
                number(cost.parameters, ",.0f"),
            )
        )
    note = (
        f"Mean {group.mean_text}. {_frontiers_text(grid, found, 8)} {_NOTE} Operations to adapt, in forward "
        "passes of one image; seconds to adapt, wall-clock; peak memory in MiB."
    )
    header = ("method", "nothing is better for", "mean", "operations", "seconds", "MiB", "trainable parameters")
    title = "Costs, and the methods that no cheaper method beats"
    return group_table(group, "frontier", title, note, header, rows, k=k, text_columns=2)


def accuracy_against_costs(grid: GridResults, group: ComparisonGroup) -> Iterator[FigureFile]:
    """Draw mean accuracy against costs at one k, the largest one of :func:`drawn_ks`.

    The first figure is against the operations to adapt or, if they are unknown for a method, against the trainable
    parameters. The second figure is against all other costs that are known for every method. There are no figures if
    fewer than two methods with a support have a mean.
    """
    k = drawn_ks(group)[-1]
    means, verdict = _means(group, k), _verdict(grid, group, k)
    if sum(method not in group.fixed for method in means) < 2:
        return
    known = [kind for kind in _KINDS if all(verdict.cost(method).of(kind) < math.inf for method in means)]
    first, axis = ("operations", "operations") if "operations" in known else ("parameters", "trainable parameters")
    others = [kind for kind in known if kind != first]
    yield _figure(grid, group, k, means, verdict, [first], name=f"costs_{first}", title=f"against {axis}")
    yield _figure(grid, group, k, means, verdict, others, name="costs_others", title="against other costs")


def _means(group: ComparisonGroup, k: int) -> dict[str, Summary]:
    return {method: mean for method in group.methods if (mean := group.mean(method, k))}


def _verdict(grid: GridResults, group: ComparisonGroup, k: int) -> Verdict:
    """Return the verdict over the datasets of a group at one k, with the methods' costs.

    If there is none, the returned verdict has no best set, and the operations and the sources are unknown.
    """
    verdicts = (series.at(k) for series in grid.verdicts_about(group) if not series.dataset)
    rows = (row for method in group.methods for row in group.rows_at(method, k))
    return next(verdicts, None) or Verdict("datasets", methods=(), pairs=(), n=0, costs=costs_of(rows, {}))


def _frontiers(group: ComparisonGroup, means: Mapping[str, Summary], verdict: Verdict) -> dict[str, list[str]]:
    """Return kind of cost -> the methods on the frontier: no method with an equal or lower cost has a better mean."""
    scores = {method: group.metric.sign * mean.mean for method, mean in means.items()}
    return {kind: frontier(scores, {m: cost.of(kind) for m, cost in verdict.costs.items()}) for kind in _KINDS}


def _frontiers_text(grid: GridResults, found: Mapping[str, list[str]], most: int) -> str:
    """Return a sentence for each kind of cost in ``found``: it names the methods on the frontier, at most ``most``."""
    own = {_KINDS[kind][0]: [grid.display_names[m] for m in methods] for kind, methods in found.items() if methods}
    return " ".join(f"Pareto frontier for {words}: {listed(names, most)}." for words, names in own.items())


def _figure(
    grid: GridResults, group: ComparisonGroup, k: int, means: Mapping[str, Summary], verdict: Verdict,
    kinds: Sequence[str], *, name: str, title: str,
) -> FigureFile:  # fmt: skip
    found = {kind: methods for kind, methods in _frontiers(group, means, verdict).items() if kind in kinds}

    def draw(axes: Any, kind: str) -> list[PointLabel]:
        """Draw the methods' means against one kind of cost, and the Pareto frontier as steps.

        Returns the names to write beside the points.
        """
        values = [verdict.cost(method).of(kind) / _UNITS.get(kind, 1.0) for method in means]
        xs, ticks = _log_axis([max(value, _SHORTEST) if kind == "seconds" else value for value in values])
        places, labels = dict(zip(means, xs, strict=True)), []
        for method, mean in means.items():
            style = grid.styles[method]
            colour, marker = style["color"], style["marker"] or "o"
            inside = colour if method in verdict.best_set else "none"
            axes.errorbar(
                [places[method]], [mean.mean], yerr=[mean.std or 0.0], color=colour, marker=marker,
                markersize=7, markerfacecolor=inside, markeredgewidth=1.4, elinewidth=1.0, zorder=4,
            )  # fmt: skip
            labels.append(PointLabel(grid.display_names[method], places[method], mean.mean, colour))
        axes.set_xticks([x for x, _ in ticks], [text for _, text in ticks])
        axes.set_xlim(min(*xs, ticks[0][0]) - 0.4, max(*xs, ticks[-1][0]) + 0.6)
        steps = [(places[method], means[method].mean) for method in found[kind]]
        ends = [*(x for x, _ in steps), axes.get_xlim()[1]], [*(y for _, y in steps), steps[-1][1]]
        axes.step(*ends, where="post", color=NEUTRAL, linewidth=1.0, alpha=0.4, zorder=2)
        axes.grid(color=FAINT)
        axes.margins(y=0.12)
        axes.set_xlabel(_KINDS[kind][1])
        if "zero_shot" not in map(grid.method_names.get, means):
            frozen = [group.zero_shot(k, test) for test in group.tests(k, averaged=True)]
            if known := [value for value in frozen if value is not None] if None not in frozen else []:
                axes.axhline(fmean(known), color=NEUTRAL, linestyle="--", linewidth=1.2, zorder=1)
                labels.append(PointLabel("zero-shot", axes.get_xlim()[0], fmean(known), NEUTRAL))
        return labels

    with canvas(5.6 if len(kinds) == 1 else 3.4 * len(kinds), 3.5) as figure:
        plots = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
        labels = [draw(axes, kind) for axes, kind in zip(plots, kinds, strict=True)]
        plots[0].set_ylabel(f"mean {group.metric.title} (%)")
        for axes, own in zip(plots, labels, strict=True):  # names are placed in the final layout
            label_points(axes, own)
        filled = " Filled: may be the best, at 95 %." if verdict.best_set else ""
        mean = f"Mean {group.mean_text} over {group.dataset_count()}."
        caption = f"{_frontiers_text(grid, found, 6)} {_NOTE}{filled} {mean} {group.deviation_text('Whiskers')}"
        if "seconds" in kinds:
            caption += " Seconds are wall-clock on the machines that ran the cells."
        heading = f"{group.metric.heading} {title}"
        return group_figure(figure, group, name, heading, caption, k=k, table="frontier", wide=len(kinds) > 1)


def _log_axis(values: Sequence[float]) -> tuple[list[float], list[tuple[float, str]]]:
    """Return the positions of ``values`` on an axis of powers of ten, and the ticks of the axis.

    Zero is one step below the smallest power.
    """
    powers = [math.log10(value) if value else None for value in values]
    known = [power for power in powers if power is not None] or [0.0]
    first, last = math.floor(min(known)), math.ceil(max(known))
    ticks = [(float(power), power_of_ten(power)) for power in range(first, last + 1, -(-(last - first + 1) // 7))]
    if len(known) < len(powers):
        ticks.insert(0, (first - 1.0, "0"))
    return [first - 1.0 if power is None else power for power in powers], ticks


def power_of_ten(power: int) -> str:
    """Return a power of ten as an axis prints it: ``0.01``, ``100``, ``10 k``, ``1 M``."""
    if power < 3:
        return f"{10.0**power:g}"
    unit = min(power // 3, 4)
    return f"{10 ** (power - 3 * unit)} {' kMGT'[unit]}"


def data_efficiency_table(grid: GridResults, group: ComparisonGroup) -> Table | None:
    """Make the table of methods x references: how many images per class a reference needs for a method's score.

    A method's score is its mean at the largest k. The references are methods that may be the best. ``None`` if no
    number can be given.
    """
    last = group.ks[-1]
    best = _verdict(grid, group, last).best_set
    references = [method for method in best if method not in group.fixed][:_REFERENCES]
    rows = []
    for method in (one for one in group.methods if one not in group.fixed):
        images = [_images(group, reference, method) if reference != method else None for reference in references]
        if any(images):
            entries = (_images_entry(found, group.ks) for found in images)
            rows.append((method_entry(grid, method), summary_entry(group, method, group.mean(method, last)), *entries))
    if not rows:
        return None
    note = (
        f"Images per class with which the column's method reaches the mean {group.mean_of} of the row's method "
        f"at k = {last}, with the 95 per cent interval over datasets. The columns are methods that may be the best. "
        "Between two k a score is taken to be linear in log k on each dataset."
    )
    header = ("method", k_title(last), *(f"images for {grid.display_names[one]}" for one in references))
    return group_table(group, "data_efficiency", "Images per class for the same score", note, header, rows)


def _images(group: ComparisonGroup, reference: str, method: str) -> Images | None:
    """Return how many images per class the reference needs to reach the method's score at the largest k.

    ``None`` if the scores do not suffice for :func:`images_to_reach`.
    """
    sign, last = group.metric.sign, group.ks[-1]
    curves = [
        [group.score(reference, k, test) for k in group.ks] + [group.score(method, last, test)]
        for test in group.tests(last, averaged=True)
    ]
    if not (known := [[sign * one.mean for one in own if one] for own in curves if all(own)]):
        return None
    scores_KN = np.array(known).T
    return images_to_reach(np.array(group.ks), scores_KN[:-1], scores_KN[-1])


def _images_entry(found: Images | None, ks: Sequence[int]) -> Entry:
    """Return the entry of a number of images and its interval, such as ``7 (5 to 10)``.

    ``below 1``: the reference reaches the score even at the smallest k. ``over 16``: it reaches the score at no k.
    """
    if found is None:
        return Entry(DASH)
    below, over = f"below {ks[0]}", f"over {ks[-1]}"
    text = _two_digits(found.k) or (below if found.reached else over)
    low, high = _two_digits(found.low) or below, _two_digits(found.high) or over
    if found.k is None and found.low is None and found.high is None:
        return Entry(text)
    return Entry(f"{text} ({low} to {high})", value=found.k)


def _two_digits(images: float | None) -> str:
    """Return a number with two significant digits, without an exponent: ``8.2``, ``130``; empty for ``None``."""
    return "" if images is None else f"{float(f'{images:.2g}'):g}"
