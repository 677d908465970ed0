"""Tables of costs: the methods on the Pareto frontiers, and the images per class that the best methods need."""

from collections.abc import Sequence

import numpy as np

from orchestrator.analysis.costs import Cost
from orchestrator.analysis.data_efficiency import Images, images_to_reach
from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.frontiers import KINDS, NOTE, frontiers, frontiers_text, group_costs
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.notation import DASH, k_title
from orchestrator.report.tables.common import group_table, method_entry, summary_entry
from orchestrator.report.tables.table import Entry, Table, number

_REFERENCES = 3
"""The table of images per class has at most this many columns of references, which are methods of the best set."""


def frontier_table(grid: GridResults, group: ComparisonGroup, k: int) -> Table | None:
    """Make the table of each method's Pareto frontiers (those that it is on), mean and costs at one k.

    ``None`` if fewer than two methods have a mean.
    """
    means = {method: mean for method in group.methods if (mean := group.mean(method, k))}
    if len(means) < 2:
        return None
    costs = group_costs(grid, group, k)
    found = frontiers(group, means, costs)
    rows = []
    for method, mean in sorted(means.items(), key=lambda item: -group.metric.sign * item[1].mean):
        kinds = [KINDS[kind] for kind, own in found.items() if method in own]
        cost = costs.get(method, Cost())
        rows.append(
            (
                method_entry(grid, method),
                Entry(", ".join(kinds) or DASH),
                summary_entry(group, method, mean),
                number(cost.operations, ",.0f"),
                number(cost.seconds),
                number(cost.memory / 2**20 if cost.memory is not None else None, ",.0f"),
                number(cost.trainable_parameters, ",.0f"),
            )
        )
    note = (
        f"Mean {group.mean_text}. {frontiers_text(grid, found, KINDS, 8)} {NOTE} Operations to adapt, in forward "
        "passes of one image; seconds to adapt, wall-clock; peak memory in MiB."
    )
    header = ("method", "nothing is better for", "mean", "operations", "seconds", "MiB", "trainable parameters")
    return group_table(
        group, "frontier", "Costs, and the methods that nothing cheaper beats", note, header, rows, k=k, text_columns=2
    )


def data_efficiency_table(grid: GridResults, group: ComparisonGroup) -> Table | None:
    """Make the table of methods x references: how many images per class a reference needs for a method's score.

    The score of a method is the one at the largest k. The references are methods that may be the best. ``None`` if no
    number can be given.
    """
    last = group.ks[-1]
    verdicts = [series.at(last) for series in grid.verdicts_about(group) if not series.dataset]
    best = [method for verdict in verdicts if verdict for method in verdict.comparison.best_set]
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
        f"How many images per class the methods that may be the best need for the mean {group.mean_of} that each "
        f"method has at k = {last}, with the 95 per cent interval over datasets. Between two k a score is taken to be "
        "linear in log k on each dataset."
    )
    header = ("method", k_title(last), *(f"images for {grid.display_names[one]}" for one in references))
    return group_table(group, "data_efficiency", "Images per class for the same score", note, header, rows)


def _images(group: ComparisonGroup, reference: str, method: str) -> Images | None:
    """Return how many images per class the reference needs for the score that the method has at the largest k.

    ``None`` if the scores do not suffice for :func:`images_to_reach`.
    """
    sign, last = group.metric.sign, group.ks[-1]
    curves = [
        [group.score(reference, k, test) for k in group.ks] + [group.score(method, last, test)]
        for test in group.tests(last, averaged=True)
    ]
    known = [[sign * one.mean for one in own if one] for own in curves if all(own)]
    if not known:
        return None
    scores_KN = np.array(known).T
    return images_to_reach(np.array(group.ks), scores_KN[:-1], scores_KN[-1])


def _images_entry(found: Images | None, ks: Sequence[int]) -> Entry:
    """Return the entry of a number of images and its interval, such as ``7 (5 to 10)``.

    ``below 1``: the reference has the score even at the smallest k. ``over 16``: it does not have the score at any k.
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
