"""The tables and figures of a report: one line for each kind, which says what makes it and where it is shown.

``GROUP_TABLES`` and ``GROUP_FIGURES`` are made for every group, ``REPORT_TABLES`` once for the whole report. To add a
kind, write a function that returns a :class:`Table` or :class:`FigureFile`, import it here and add a line to a list;
see docs/adding-a-report-table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

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
from orchestrator.report.paper.field import tables_beside_measured
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
from orchestrator.report.tables.efficiency import data_efficiency_table, frontier_table
from orchestrator.report.tables.table import Table
from orchestrator.report.tables.verdict import verdict_tables, verdict_tables_over_domains
from orchestrator.report.tables.whole_grid import (
    cells_without_result_table,
    costs_tables,
    left_out_table,
    missing_table,
    short_classes_table,
    sources_table,
)

T = TypeVar("T", Table, FigureFile)

# Section of the page -> its tables or figures.
Tables = dict[str, list[Table]]
Figures = dict[str, list[FigureFile]]


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of table or figure that every comparison group has.

    Attributes:
        name: names the kind in a track's ``lead_tables`` or ``lead_figures``; file names begin with it.
        make: ``make(grid, group)`` gives one or several; ``None`` or none if the group has nothing to show.
        section: where the page shows it. ``lead``: at the top, if the group's track lists it. ``files``: not on the
            page, but as a file.
        ks: the k of a group for each of which ``make(grid, group, k)`` is called; without it, ``make`` takes no k.
        always: whether a ``lead`` table is written as a file even if the track does not list it.
        includes: a table that this one contains if there is only one k; the page then leaves that table out.
    """

    name: str
    make: Callable[..., T | Iterable[T] | None]
    section: str
    ks: Callable[[ComparisonGroup], Iterable[int]] | None = None
    always: bool = True
    includes: str = ""

    def of(self, grid: GridResults, group: ComparisonGroup) -> list[T]:
        """Make all tables or figures of this kind for a group."""
        calls = [(grid, group)] if self.ks is None else [(grid, group, k) for k in self.ks(group)]
        return [one for call in calls for one in _as_list(self.make(*call))]


def every_k(group: ComparisonGroup) -> Iterable[int]:
    """Return every k of a group."""
    return group.ks


GROUP_TABLES = [
    Kind("main", main_table, "lead"),
    Kind("datasets", dataset_table, "lead", ks=every_k),
    Kind("shift", shift_table, "lead", ks=every_k, always=False, includes="main"),
    Kind("base_to_new", base_to_new_table, "lead", ks=every_k, always=False),
    Kind("epochs", epochs_table, "lead", ks=every_k, always=False),
    Kind("ablation", variants_tables, "variants"),
    Kind("verdict", verdict_tables, "verdict"),
    Kind("frontier", frontier_table, "costs", ks=every_k),
    Kind("data_efficiency", data_efficiency_table, "costs"),
]

GROUP_FIGURES = [
    Kind("settings", accuracy_against_settings, "variants"),
    Kind("variants", effects_of_variants, "variants"),
    Kind("accuracy", accuracy_against_k, "lead"),
    Kind("epochs", accuracy_after_epochs, "lead", ks=every_k),
    Kind("dots", accuracy_by_dataset, "datasets", ks=drawn_ks),
    Kind("radar", accuracy_radar, "published", ks=drawn_ks),
    Kind("costs", accuracy_against_costs, "costs"),
]

REPORT_TABLES: list[tuple[str, Callable[[GridResults], Table | Iterable[Table] | None]]] = [
    ("files", verdict_tables_over_domains),
    ("datasets", explorer_tables),
    ("switches", effects_table),
    ("published", published_table),
    ("paper", paper_tables),
    ("paper", tables_beside_measured),
    ("sources", sources_table),
    ("costs", costs_tables),
    ("short_classes", short_classes_table),
    ("missing", missing_table),
    ("left_out", left_out_table),
    ("files", cells_without_result_table),
]
"""What makes the tables that a report has once, by the section that shows them unless they are empty."""


def group_tables(grid: GridResults, group: ComparisonGroup) -> Tables:
    """Make the tables of one group.

    If the group holds nothing but variants of one method, their table (``ablation``) replaces the first lead table,
    which would have the same rows.
    """
    lead_names = group.track.lead_tables
    kinds = [kind for kind in GROUP_TABLES if kind.always or kind.name in lead_names]
    included = {kind.includes for kind in kinds if kind.name in lead_names and len(group.ks) == 1}
    sections: Tables = {"lead": [], "variants": [], "datasets": [], "verdict": [], "costs": [], "files": []}
    for kind in kinds:
        hidden = kind.section == "lead" and (kind.name not in lead_names or kind.name in included)
        tables = kind.of(grid, group)
        if kind.name == "ablation" and [len(table.rows) for table in tables] == [len(group.methods)]:
            sections["files"] += sections["lead"][:1]
            sections["lead"][:1] = tables
        else:
            sections["files" if hidden else kind.section] += tables
    return sections


def group_figures(grid: GridResults, group: ComparisonGroup, kinds: Sequence[Kind[FigureFile]]) -> Figures:
    """Draw the figures of one group.

    ``kinds`` are ``GROUP_FIGURES``. They are an argument because another process may lack a kind that was added here.

    A group of a changed protocol has none: a table shows its effect. A group of ablations has only figures of variants,
    if there are any: the other figures would show the same numbers again.
    """
    sections: Figures = {"lead": [], "variants": [], "datasets": [], "costs": [], "published": []}
    lead_names = group.track.lead_figures
    for kind in sorted(kinds, key=lambda kind: kind.section != "variants"):
        repeated = group.key.ablations and kind.section != "variants" and sections["variants"]
        listed = kind.section != "lead" or kind.name in lead_names
        if listed and not repeated and not group.of_changed_protocol:
            sections[kind.section] += kind.of(grid, group)
    return sections


def report_tables(grid: GridResults) -> Tables:
    """Make the tables that belong to no group."""
    sections: Tables = {}
    for section, make in REPORT_TABLES:
        sections.setdefault(section, []).extend(_as_list(make(grid)))
    return sections


def _as_list(made: T | Iterable[T] | None) -> list[T]:
    """Return what a line of the registry has made, as a list."""
    if made is None:
        return []
    return [made] if isinstance(made, Table | FigureFile) else list(made)
