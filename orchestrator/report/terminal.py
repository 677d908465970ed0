"""The end of a run in the terminal: methods x k for each domain, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import TRACK_TITLES
from orchestrator.report.analysis.rows import LabelOf
from orchestrator.report.analysis.study import Study, study_of
from orchestrator.report.analysis.verdict import Verdict, headline, verdicts_of
from orchestrator.report.styles import styles_of
from orchestrator.report.tables.comparison import main_table
from orchestrator.report.tables.switch_effects import effects_table
from orchestrator.report.tables.table import Table
from orchestrator.report.text import SELECTED_NOTE
from orchestrator.store.results import Failure, Result

_MARKS = {"best": "bold", "second": "underline", "": ""}


def terminal_summary(
    *, results: Sequence[Result], failures: Sequence[Failure] = (), planned: Sequence[Cell] = (), label_of: LabelOf
) -> RenderableType:
    """What the command line prints at the end of a grid."""
    return summary_of(study_of(results=results, failures=failures, planned=planned, label_of=label_of))


def summary_of(study: Study) -> RenderableType:
    """The summary of an arranged study."""
    styles = styles_of(study.method_names)
    parts: list[RenderableType] = []
    for panel in study.leading:
        table = main_table(panel, styles)
        parts += [Text(table.title, style="bold"), _table(table)]
    if (effects := effects_table(study)) is not None:
        parts += [Text(effects.title, style="bold"), _table(effects, ("switch", "method", "points", "n"))]
    if any(panel.selects_on_test for panel in study.panels):
        parts.append(Text(SELECTED_NOTE, style="yellow"))
    if study.panels:
        parts.append(Text("mean accuracy (%) over datasets ± sample standard deviation over seeds", style="dim"))
        parts += [Text(line) for line in _headlines(study)]
    else:
        parts.append(Text("no results yet"))
    if study.failures:
        parts.append(Text(f"{len(study.failures)} failed:", style="red"))
        parts += [Text(f"  {failure.id}  {failure.error}  {failure.log}") for failure in study.failures[:5]]
        if len(study.failures) > 5:
            parts.append(Text(f"  ... and {len(study.failures) - 5} more, all of them in the report"))
    if study.missing:
        parts.append(Text(f"{len(study.missing)} of {len(study.planned)} planned cells were not run", style="yellow"))
    return Group(*parts)


def _headlines(study: Study) -> list[str]:
    """One sentence per track and protocol, which are never counted together."""
    verdicts: dict[tuple[str, str], list[Verdict]] = {}
    for panel in study.leading:
        if panel.key.ablations:
            continue
        verdicts.setdefault((panel.key.track, panel.key.protocol), []).extend(verdicts_of(panel))
    if len(verdicts) == 1:
        return [headline(own) for own in verdicts.values()]
    return [f"{TRACK_TITLES.get(track, track)}, {name}: {headline(own)}" for (track, name), own in verdicts.items()]


def _table(table: Table, columns: Sequence[str] = ()) -> RichTable:
    """The table, or the ``columns`` of it that fit into a terminal of 80."""
    rich = RichTable(header_style="dim")
    shown = [i for i, title in enumerate(table.header) if not columns or title in columns]
    for i in shown:
        rich.add_column(table.header[i], justify="left" if i < table.words else "right", no_wrap=i >= table.words)
    for row in table.rows:
        # Without the gains, so that five k fit into a terminal of 80 columns.
        rich.add_row(*(Text(replace(row[i], gain=None).plain, style=_MARKS[row[i].mark]) for i in shown))
    return rich
