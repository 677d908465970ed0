"""The summary that the terminal shows at the end of a run: the verdicts, methods x k by domain, what is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.analysis.verdict import VerdictSeries
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.notation import SELECTED_NOTE, k_title
from orchestrator.report.tables.accuracy import main_table
from orchestrator.report.tables.changes import effects_table
from orchestrator.report.tables.table import Table

_HIGHLIGHTS = {"best": "bold", "second": "underline", "": ""}
_LISTED_FAILURES = 5


def terminal_summary(grid: GridResults) -> RenderableType:
    """Return what the command line prints at the end of a grid: first which method to use, then the accuracies."""
    parts = [part for answer in grid.answers for part in _answer(grid, answer)]
    parts += [Text(limit.sentence, style="yellow") for limit in grid.text_limits]
    for group in grid.main_groups:
        table = main_table(grid, group)
        parts += [Text(table.title, style="bold"), _rich_table(table)]
    if (effects := effects_table(grid)) is not None:
        parts += [Text(effects.title, style="bold"), _rich_table(effects, ("switch", "method", "points", "n"))]
    if any(group.selects_on_test for group in grid.groups):
        parts.append(Text(SELECTED_NOTE, style="yellow"))
    if grid.groups:
        parts.append(Text("mean accuracy (%) over datasets ± sample standard deviation over seeds", style="dim"))
    else:
        parts.append(Text("no results yet"))
    if grid.failures:
        parts.append(Text(f"{len(grid.failures)} failed:", style="red"))
        listed = grid.failures[:_LISTED_FAILURES]
        parts += [Text(f"  {failure.id}  {failure.error}  {failure.log}") for failure in listed]
        if (more := len(grid.failures) - len(listed)) > 0:
            parts.append(Text(f"  ... and {more} more, all of them in the report"))
    if grid.missing:
        parts.append(Text(f"{len(grid.missing)} of {len(grid.planned)} planned cells were not run", style="yellow"))
    return Group(*parts)


def _answer(grid: GridResults, answer: VerdictSeries) -> Iterator[RenderableType]:
    """Yield the recommendation of one place, and a line for each k."""
    yield Text.assemble((grid.answer_title(answer), "bold"), f": {answer.recommendation(grid.display_names)}")
    lines = RichTable.grid(padding=(0, 2), pad_edge=True)
    for verdict in answer.verdicts:
        lines.add_row(k_title(verdict.k) if verdict.k else "", verdict.statement(grid.display_names))
    yield lines


def _rich_table(table: Table, columns: Sequence[str] = ()) -> RichTable:
    """Return the table for the terminal: all columns, or only those named in ``columns``.

    Gains are left out, so that five k fit into 80 characters.
    """
    rich = RichTable(header_style="dim")
    shown = [i for i, title in enumerate(table.header) if not columns or title in columns]
    for i in shown:
        is_number = i >= table.text_columns
        rich.add_column(table.header[i], justify="right" if is_number else "left", no_wrap=is_number)
    for row in table.rows:
        rich.add_row(*(Text(replace(row[i], gain=None).plain, style=_HIGHLIGHTS[row[i].highlight]) for i in shown))
    return rich
