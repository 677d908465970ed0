"""The tables and figures of a report: one line for each kind, which says what makes it and where it is shown.

``GROUP_TABLES`` and ``GROUP_FIGURES`` are made for every group, ``REPORT_TABLES`` once for the whole report. To add a
kind, write a function that returns a :class:`Table` or :class:`FigureFile`, import it here and add a line to a list;
see docs/adding-a-report-table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from orchestrator.report.analysis.comparison_group import ComparisonGroup
from orchestrator.report.analysis.grid_results import GridResults
from orchestrator.report.figures.by_dataset import accuracy_by_dataset, accuracy_radar, drawn_ks
from orchestrator.report.figures.costs import accuracy_against_costs
from orchestrator.report.figures.curves import (
    accuracy_after_epochs,
    accuracy_against_k,
    accuracy_against_settings,
    effects_of_variants,
)
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.paper.paper_tables import paper_tables
from orchestrator.report.tables.accuracy import (
    base_to_new_table,
    dataset_table,
    epochs_table,
    explorer_tables,
    main_table,
    published_table,
    shift_table,
)
from orchestrator.report.tables.changes import effects_table, variants_tables
from orchestrator.report.tables.table import Table
from orchestrator.report.tables.verdict import verdict_tables, verdict_tables_over_domains
from orchestrator.report.tables.whole_grid import (
    cells_without_result_table,
    costs_tables,
    missing_table,
    short_classes_table,
    sources_table,
)

T = TypeVar("T", Table, FigureFile)

GroupTableSection = Literal["lead", "variants", "datasets", "verdict", "files"]
GroupFigureSection = Literal["lead", "variants", "datasets", "costs", "published"]
ReportTableSection = Literal[
    "datasets", "switches", "published", "paper", "sources", "costs", "short_classes", "missing", "files"
]

# Section of the page -> its tables or figures: those of one group, and those that belong to no group.
GroupTables = dict[GroupTableSection, list[Table]]
GroupFigures = dict[GroupFigureSection, list[FigureFile]]
ReportTables = dict[ReportTableSection, list[Table]]


@dataclass(frozen=True)
class GroupTable:
    """A kind of table that every group has.

    Attributes:
        name: names the kind in a track's ``lead_tables``; file names begin with it.
        make: ``make(grid, group)`` gives one table or several; ``None`` or none if the group has nothing to show.
        section: where the page shows it. ``lead``: at the top, if the group's track lists it in ``lead_tables``.
            ``files``: not on the page, but as a file.
        always: whether a ``lead`` table is written as a file even if the track does not list it.
        includes: a table that this one contains if there is only one k; the page then leaves that table out.
    """

    name: str
    make: Callable[[GridResults, ComparisonGroup], Table | Iterable[Table] | None]
    section: GroupTableSection
    always: bool = True
    includes: str = ""


@dataclass(frozen=True)
class GroupFigure:
    """A kind of figure that every group has; see :class:`GroupTable`. A track lists it in ``lead_figures``."""

    name: str
    make: Callable[[GridResults, ComparisonGroup], FigureFile | Iterable[FigureFile] | None]
    section: GroupFigureSection


def ks_of(group: ComparisonGroup) -> Iterable[int]:
    """Return every k of a group."""
    return group.ks


def each_k(
    make: Callable[[GridResults, ComparisonGroup, int], T | None],
    ks: Callable[[ComparisonGroup], Iterable[int]] = ks_of,
) -> Callable[[GridResults, ComparisonGroup], Iterator[T]]:
    """Adapt a function that makes one table or figure of a group at one k, or ``None``."""
    return partial(_at_each_k, make, ks)


def _at_each_k(
    make: Callable[[GridResults, ComparisonGroup, int], T | None],
    ks: Callable[[ComparisonGroup], Iterable[int]],
    grid: GridResults,
    group: ComparisonGroup,
) -> Iterator[T]:
    return (made for k in ks(group) if (made := make(grid, group, k)) is not None)


GROUP_TABLES = [
    GroupTable("main", main_table, "lead"),
    GroupTable("datasets", each_k(dataset_table), "lead"),
    GroupTable("shift", each_k(shift_table), "lead", always=False, includes="main"),
    GroupTable("base_to_new", each_k(base_to_new_table), "lead", always=False),
    GroupTable("epochs", each_k(epochs_table), "lead", always=False),
    GroupTable("ablation", variants_tables, "variants"),
    GroupTable("verdict", verdict_tables, "verdict"),
]

GROUP_FIGURES = [
    GroupFigure("settings", accuracy_against_settings, "variants"),
    GroupFigure("variants", effects_of_variants, "variants"),
    GroupFigure("accuracy", accuracy_against_k, "lead"),
    GroupFigure("epochs", each_k(accuracy_after_epochs), "lead"),
    GroupFigure("dots", each_k(accuracy_by_dataset, drawn_ks), "datasets"),
    GroupFigure("radar", each_k(accuracy_radar, drawn_ks), "published"),
    GroupFigure("costs", accuracy_against_costs, "costs"),
]

REPORT_TABLES: list[tuple[ReportTableSection, Callable[[GridResults], Table | Iterable[Table] | None]]] = [
    ("files", verdict_tables_over_domains),
    ("datasets", explorer_tables),
    ("switches", effects_table),
    ("published", published_table),
    ("paper", paper_tables),
    ("sources", sources_table),
    ("costs", costs_tables),
    ("short_classes", short_classes_table),
    ("missing", missing_table),
    ("files", cells_without_result_table),
]
"""What makes the tables that a report has once, by the section that shows them unless they are empty."""


def group_tables(grid: GridResults, group: ComparisonGroup) -> GroupTables:
    """Make the tables of one group.

    If the group holds nothing but variants of one method, their table (``ablation``) replaces the first lead table,
    which would have the same rows.
    """
    lead_names = group.track.lead_tables
    _check(group, lead_names, GROUP_TABLES)
    lines = [line for line in GROUP_TABLES if line.always or line.name in lead_names]
    made = {line.name: _as_list(line.make(grid, group)) for line in lines}
    included = {line.includes for line in lines if line.name in lead_names and len(group.ks) == 1}
    sections: GroupTables = {"lead": [], "variants": [], "datasets": [], "verdict": [], "files": []}
    for line in lines:
        hidden = line.section == "lead" and (line.name not in lead_names or line.name in included)
        sections["files" if hidden else line.section] += made[line.name]
    variants = made["ablation"]
    if [len(table.rows) for table in variants] == [len(group.methods)]:
        sections["files"] += sections["lead"][:1]
        sections["lead"][:1] = variants
        sections["variants"] = [table for table in sections["variants"] if table not in variants]
    return sections


def group_figures(grid: GridResults, group: ComparisonGroup, kinds: Iterable[GroupFigure]) -> GroupFigures:
    """Draw the figures of one group. ``kinds`` are ``GROUP_FIGURES``, which another process may lack a line of.

    A group of a changed protocol has none: a table shows its effect. A group of ablations has only figures of variants,
    if there are any: the other figures would show the same numbers again.
    """
    sections: GroupFigures = {"lead": [], "variants": [], "datasets": [], "costs": [], "published": []}
    lead_names = group.track.lead_figures
    _check(group, lead_names, kinds)
    for kind in sorted(kinds, key=lambda kind: kind.section != "variants"):
        repeated = group.key.ablations and kind.section != "variants" and sections["variants"]
        listed = kind.section != "lead" or kind.name in lead_names
        if listed and not repeated and not group.of_changed_protocol:
            sections[kind.section] += _as_list(kind.make(grid, group))
    return sections


def report_tables(grid: GridResults) -> ReportTables:
    """Make the tables that belong to no group."""
    sections: ReportTables = {}
    for section, make in REPORT_TABLES:
        sections.setdefault(section, []).extend(_as_list(make(grid)))
    return sections


def _as_list(made: T | Iterable[T] | None) -> list[T]:
    """Return what a line of the registry has made, as a list."""
    if made is None:
        return []
    return [made] if isinstance(made, Table | FigureFile) else list(made)


def _check(group: ComparisonGroup, names: Iterable[str], lines: Iterable[GroupTable | GroupFigure]) -> None:
    """Raise ``ValueError`` if the group's track names a lead table or figure that is not registered."""
    known = sorted(line.name for line in lines if line.section == "lead")
    for name in names:
        if name not in known:
            raise ValueError(f"track {group.key.track}: the report has no {name!r} to show first, only {known}")
