"""What the tables about a comparison group share: name and title, entries for methods and scores, and warnings."""

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from orchestrator.analysis.seed_means import Summary
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.styles import at_k
from orchestrator.report.tables.table import Entry, Table, measured, with_dagger, with_highlights
from orchestrator.util.units import pluralize


def group_table(
    group: ComparisonGroup, kind: str, title: str, note: str, header: Iterable[str], rows: Iterable[Sequence[Entry]], *,
    k: int | None = None, best: bool = False, warned: GridResults | None = None, text_columns: int = 1, **fields: Any,
) -> Table:  # fmt: skip
    """Return a table about one group, or about one k of it. ``fields`` are further fields of :class:`Table`.

    The table's name is ``kind`` with the group and k. Rows have a dagger if test labels may have chosen the numbers.
    With ``best``, the best and second best number of every column are highlighted. If ``warned`` has the grid's
    results, the note ends with warnings about the group.
    """
    note = note if warned is None else _with_warnings(note, group, warned)
    name = f"{kind}_{group.slug}" + (f"_k{k}" if k is not None else "")
    shown = with_highlights(list(rows), text_columns) if best else rows
    entries = tuple(with_dagger(row, group.selects_on_test) for row in shown)
    title = f"{title}{at_k(k or 0)}, {group.title}"
    return Table(name, title, note, tuple(header), entries, text_columns, **fields)


def method_entry(grid: GridResults, method: str) -> Entry:
    """Return a method's display name with its colour, and a tooltip that says what the method does."""
    return Entry(
        grid.display_names.get(method, method),
        code=method if method in grid.display_names else "",
        colour=grid.styles[method]["color"] if method in grid.styles else "",
        tooltip=grid.summaries.get(method, ""),
    )


def summary_entry(group: ComparisonGroup, method: str, summary: Summary | None, **more: Any) -> Entry:
    """Return the entry of one method's mean over seeds. ``more``: further arguments of :func:`measured`."""
    lower, seeds = group.metric.lower_is_better, 1 if method in group.fixed else group.seed_counts[1]
    return measured(summary, seeds=seeds, digits=group.digits, lower_is_better=lower, **more)


def score_entry(group: ComparisonGroup, method: str, k: int, test: str) -> Entry:
    """Return the entry of a method's score on one test split, with its deviation over seeds and the cells' ids."""
    cells = tuple(row.cell_id for row in group.rows_by_seed(method, k, test).values())
    return summary_entry(group, method, group.score(method, k, test), cells=cells)


def mean_entry(group: ComparisonGroup, method: str, k: int, *, raced: bool = False) -> Entry:
    """Return the entry of a method's mean over datasets at one k, with its gain over zero-shot.

    If no seed has every dataset, the entry is a dash with the number of measured datasets. After a race (``raced``),
    the mean over the measured datasets follows the dash as plain text, so tables do not sort by it.
    """
    fixed, mean = method in group.fixed, group.mean(method, k)
    missing = f"{group.measured_tests(method, k)} datasets"
    there = [test for test in group.tests(k, averaged=True) if group.rows_by_seed(method, k, test)]
    if raced and mean is None and (part := group.mean(method, k, tests=there)):
        missing = f"{part.mean:.{group.digits}f} over {missing}"
    gain = None if fixed and group.is_zero_shot(method) else group.mean(method, k, lambda row: row.score_gain)
    tooltip, lead = "does not depend on the support" if fixed else "", gain.mean if gain else None
    return summary_entry(group, method, mean, gain=lead, missing=f"({missing})", tooltip=tooltip)


def _with_warnings(note: str, group: ComparisonGroup, grid: GridResults) -> str:
    """Return the note, followed by warnings: classes with fewer than k images, and methods scored on other images."""
    rows = sorted(group.rows, key=attrgetter("target_classes"))  # a group of classes has fewer than the target
    short = {(row.k, row.dataset): row for row in rows if row.short_classes}
    warnings = [
        f"{dataset}: {row.short_classes} {f'of {row.target_classes} ' if row.target_classes else ''}classes "
        f"{'has' if row.short_classes == 1 else 'have'} fewer than {pluralize(k, 'training image')}; all of these were "
        "taken."
        for (k, dataset), row in sorted(short.items())
    ]
    if len(short) > 3:
        counted = f"On {len(short)} pairs of dataset and k some classes have fewer than k training images"
        warnings = [f"{counted} (table short_classes); all of these were taken."]
    if group.scored_on_other_images:
        methods = ", ".join(grid.display_names[method] for method in group.scored_on_other_images)
        warnings.append(f"Scored on other images than the rest: {methods}; compare gains, not accuracies.")
    return " ".join([note, *warnings])
