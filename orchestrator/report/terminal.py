"""The summary that the terminal shows at the end of a run: which methods to use, one table, what is missing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.report.analysis import GridResults
from orchestrator.report.styles import DASH, SELECTED_NOTE, k_title
from orchestrator.report.tables.accuracy import main_table
from orchestrator.report.tables.changes import effects_table
from orchestrator.report.tables.table import Table
from orchestrator.util.grouping import grouped
from orchestrator.util.units import listed, pluralize

_HIGHLIGHTS = {"best": "bold", "second": "underline", "": ""}
_LISTED_FAILURES = 5


def terminal_summary(grid: GridResults, *, verbose: bool = False) -> RenderableType:
    """Return what the command line prints at the end of a grid: first which method to use, then the accuracies.

    A line for each track and domain says which methods to use. A table has the accuracies of the first comparison
    group. With ``verbose``, every group has a table, and every verdict is in words, also those about single datasets.
    """
    parts: list[RenderableType] = []
    if not grid.groups:
        parts.append(Text("no results yet"))
    elif verbose:
        parts += [part for series in grid.verdicts for part in _whole_series(grid, series)]
        parts += [Text(limit.sentence, style="yellow") for limit in grid.text_limits]
    else:
        parts += _short_verdicts(grid)
        if grid.text_limits:
            names = listed([limit.dataset for limit in grid.text_limits], 3)
            parts.append(Text(f"classes with equal text vectors in {names}; the report names them", style="yellow"))
    tables = [main_table(grid, group) for group in grid.main_groups]
    for table in tables if verbose else tables[:1]:
        parts += [Text(table.title, style="bold"), _RichTable(table)]
    if (effects := effects_table(grid)) is not None:
        parts += [Text(effects.title, style="bold"), _RichTable(effects, ("switch", "method", "points", "n"))]
    if any(group.selects_on_test for group in grid.groups):
        parts.append(Text(SELECTED_NOTE, style="yellow"))
    if grid.groups:
        more = f"; {pluralize(len(tables) - 1, 'more table')} in the report" if len(tables) > 1 and not verbose else ""
        lower = "; lower is better" if grid.groups[0].metric.lower_is_better else ""
        parts.append(Text(f"mean over datasets (%) ± sample standard deviation over seeds{lower}{more}", style="dim"))
    uneven = next((group.uneven_text for group in grid.main_groups if group.uneven_text), "").strip()
    parts += [Text(text, style="yellow") for text in (uneven, grid.unscored) if text]
    if grid.failures:
        parts.append(Text(f"{len(grid.failures)} failed:", style="red"))
        shown = grid.failures[:_LISTED_FAILURES]
        parts += [Text(f"  {failure.id}  {failure.error}  {failure.log}") for failure in shown]
        if (more_failed := len(grid.failures) - len(shown)) > 0:
            parts.append(Text(f"  ... and {more_failed} more, all of them in the report"))
    if grid.missing:
        verb = "was" if len(grid.missing) == 1 else "were"
        what = f"{len(grid.missing)} of {pluralize(len(grid.planned), 'planned cell')} {verb} not run"
        parts.append(Text(what, style="yellow"))
    if grid.left_out:
        parts += [Text(place.line) for place in grid.raced] if verbose else []
        what = f"a race left out {len(grid.left_out)} of {len(grid.planned)} planned cells, which it does not need"
        parts.append(Text(f"{what}; --no-race measures them", style="yellow"))
    return Group(*parts)


def _short_verdicts(grid: GridResults) -> list[RenderableType]:
    """Return a line for each track and domain: the methods to use, and how many may be the best."""
    lines = RichTable.grid(padding=(0, 2))
    for series in grid.shown_verdicts:
        lines.add_row(Text(grid.verdict_title(series), "bold"), _methods_to_use(grid, series))
    note = "use these; (1 of 3): one of three methods that may be the best, at 95 per cent"
    every = [verdict for series in grid.shown_verdicts for verdict in series.verdicts]
    if any(verdict.scope == "draw" for verdict in every):
        note += "; one seed on one dataset: true for these support images only"
    if any(verdict.same_supports for verdict in every):
        note += "; several test sets of one adaptation: true for these support images only"
    return [lines, Text(note, style="dim")] if lines.row_count else []


def _methods_to_use(grid: GridResults, series: VerdictSeries) -> str:
    """Return the recommended methods with their k: ``BOLT (1 of 3) at k = 1; aTLAS at k = 4, 16``."""
    clauses = []
    for method, own in grouped(series.verdicts, lambda verdict: verdict.recommended).items():
        if method is None:
            continue
        ks, sizes = [verdict.k for verdict in own], [len(verdict.best_set) for verdict in own]
        counts = DASH.join(dict.fromkeys((str(min(sizes)), str(max(sizes)))))
        others = "" if counts == "1" else f" (1 of {counts})"
        at = f" at k = {', '.join(map(str, ks))}" if any(ks) else ""
        clauses.append(f"{grid.display_names.get(method, method)}{others}{at}")
    return "; ".join(clauses) or "no method was measured"


def _whole_series(grid: GridResults, series: VerdictSeries) -> Iterator[RenderableType]:
    """Yield the recommendation of a series, and a line with the verdict at each k."""
    yield Text.assemble((grid.verdict_title(series), "bold"), f": {series.recommendation(grid.display_names)}")
    lines = RichTable.grid(padding=(0, 2), pad_edge=True)
    for verdict in series.verdicts:
        lines.add_row(k_title(verdict.k) if verdict.k else "", verdict.statement(grid.display_names))
    yield lines


@dataclass(frozen=True)
class _RichTable:
    """A table for the terminal: all columns, or only those named in ``columns``.

    Gains are left out, so that the columns of four k fit into 80 characters. The numbers of a wider table are spread
    over several tables below each other, because a narrow terminal would cut off the names of the methods.
    """

    table: Table
    columns: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.table
        shown = [i for i, title in enumerate(table.header) if not self.columns or title in self.columns]
        texts = {
            i: [Text(replace(row[i], gain=None).plain, style=_HIGHLIGHTS[row[i].highlight]) for row in table.rows]
            for i in shown
        }
        widths = {i: 3 + max(len(table.header[i]), *(text.cell_len for text in own)) for i, own in texts.items()}
        names = [i for i in shown if i < table.text_columns]
        room = options.max_width - 1 - sum(min(widths[i], options.max_width // 3) for i in names)
        parts: list[list[int]] = [[]]
        for i in shown[len(names) :]:
            if parts[-1] and sum(widths[j] for j in (*parts[-1], i)) > room:
                parts.append([])
            parts[-1].append(i)
        for numbers in parts:
            rich = RichTable(header_style="dim")
            for i in names:
                rich.add_column(table.header[i], overflow="fold")
            for i in numbers:
                rich.add_column(table.header[i], justify="right", no_wrap=True)
            for line in zip(*(texts[i] for i in (*names, *numbers)), strict=True):
                rich.add_row(*line)
            yield rich
