"""Tables of verdicts: which methods may be the best, and their differences to the first method."""

from collections.abc import Iterator

from orchestrator.analysis.best_set import MIN_DATASETS
from orchestrator.analysis.verdict import Verdict
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.styles import at_k
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Entry, Table, difference, number, with_dagger
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize


def verdict_tables(grid: GridResults, group: ComparisonGroup | None = None) -> Iterator[Table]:
    """Make a table for each verdict about a group; without ``group``, about all domains together."""
    about = grid.verdicts_about(group) if group else [one for one in grid.verdicts if not one.place.domain]
    return (_verdict_table(grid, series, verdict) for series in about for verdict in series.verdicts)


def _verdict_table(grid: GridResults, series: VerdictSeries, verdict: Verdict) -> Table:
    """Make the table of one verdict: each method's mean, difference to the first method, interval, n and seeds."""
    selected = grid.selects_on_test(series)
    rows = []
    for score in verdict.methods:
        lower, upper = score.interval or (None, None)
        row = (
            method_entry(grid, score.method),
            Entry(f"out: {grid.display_names[score.beaten_by]} is better" if score.beaten_by else "may be the best"),
            number(score.mean),
            difference(score.difference),
            difference(lower),
            difference(upper),
            number(score.n, "d"),
            number(score.seeds, "d") if score.seeds else Entry("any", tooltip="does not depend on a seed"),
        )
        rows.append(with_dagger(row, selected))
    unit = verdict.unit
    note = (
        f"{verdict.statement(grid.display_names)}. At 95 per cent, over {pluralize(verdict.n, unit)}. Difference: "
        f"the lead in points over the first method, on the {unit}s that both have, with the ends of its 95 per cent "
        f"interval. The smallest difference that matters: {pluralize(f'{verdict.smallest_difference:g}', 'point')}."
    )
    if verdict.scope == "datasets" and verdict.n < MIN_DATASETS:
        note += f" With fewer than {MIN_DATASETS} datasets, no method is excluded."
    track, protocol, backbone, domain = series.place
    about = "_".join((track, domain or "all-domains", backbone, protocol, series.dataset))
    name = f"verdict_{slug(about.strip('_'))}_k{verdict.k}"
    title = f"Which methods may be the best{at_k(verdict.k)}, {grid.verdict_title(series)}"
    header = ("method", "verdict", "mean", "difference", "from", "to", f"{unit}s", "seeds")
    table = Table(name, title, note, header, tuple(rows), text_columns=2)
    return table.without_columns([header.index("seeds")]) if unit == "seed" else table  # its n counts seeds
