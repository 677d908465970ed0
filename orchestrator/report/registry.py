"""The tables and figures of a report: one line for each kind, which says what makes it and where it is shown.

``GROUP_TABLES`` and ``GROUP_FIGURES`` are made for every comparison group, ``REPORT_TABLES`` once for the whole report.
To add a kind, write a function that returns a :class:`Table` or a :class:`FigureFile`, and add a line to one of the
lists (docs/adding-a-report-table.md).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.report import costs
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.figures import by_dataset, curves
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.paper.field import tables_beside_measured
from orchestrator.report.paper.paper_tables import paper_tables
from orchestrator.report.tables import accuracy, changes, verdict, whole_grid
from orchestrator.report.tables.table import Table

T = TypeVar("T", Table, FigureFile)

Tables = Mapping[str, list[Table]]
"""Section of the page -> its tables."""
Figures = Mapping[str, list[FigureFile]]
"""Section of the page -> its figures."""


@dataclass(frozen=True)
class Kind(Generic[T]):
    """A kind of table or figure.

    Attributes:
        make: ``make(grid, group)``, ``make(grid, group, k)`` or, for the whole report, ``make(grid)``. It returns one
            table or figure, several, or ``None``.
        section: the section of the page. Tables of the section ``files`` are not on the page, only written as files.
        each_k: whether ``make`` is called for every k of the group.
        name: the name by which tracks list the table in ``lead_tables``. If the group's track does not list a table of
            the section ``lead``, the table is only written as a file.
        replaces_main: whether a table of this kind can replace the main table, which is then only written as a file. It
            does so if it is the group's only table of this kind and has a row for every method.
    """

    make: Callable[..., T | Iterable[T] | None]
    section: str
    each_k: bool = False
    name: str = ""
    replaces_main: bool = False

    def of(self, grid: GridResults, *group: ComparisonGroup) -> list[T]:
        """Make all tables or figures of this kind about one group; without ``group``, about the whole report."""
        calls = [(*group, k) for k in group[0].ks] if self.each_k else [group]
        made = [self.make(grid, *call) for call in calls]
        several = [[one] if isinstance(one, Table | FigureFile) else one or () for one in made]
        return [one for own in several for one in own]


GROUP_TABLES: list[Kind[Table]] = [
    Kind(accuracy.main_table, "lead", name="main"),
    Kind(accuracy.dataset_table, "lead", each_k=True, name="datasets"),
    Kind(accuracy.shift_table, "lead", each_k=True, name="shift", replaces_main=True),
    Kind(accuracy.base_to_new_table, "lead", each_k=True, name="base_to_new"),
    Kind(accuracy.epochs_table, "lead", each_k=True, name="epochs"),
    Kind(changes.variants_tables, "variants", replaces_main=True),
    Kind(verdict.verdict_tables, "verdict"),
    Kind(costs.frontier_table, "costs", each_k=True),
    Kind(costs.data_efficiency_table, "costs"),
]

GROUP_FIGURES: list[Kind[FigureFile]] = [
    Kind(curves.accuracy_against_settings, "variants"),
    Kind(curves.effects_of_variants, "variants"),
    Kind(curves.accuracy_against_k, "lead"),
    Kind(curves.accuracy_after_epochs, "lead", each_k=True),
    Kind(by_dataset.accuracy_by_dataset, "datasets", each_k=True),
    Kind(by_dataset.accuracy_radar, "published", each_k=True),
    Kind(costs.accuracy_against_costs, "costs"),
]

REPORT_TABLES: list[Kind[Table]] = [
    Kind(verdict.verdict_tables, "files"),
    Kind(accuracy.explorer_tables, "datasets"),
    Kind(changes.effects_table, "switches"),
    Kind(accuracy.published_table, "published"),
    Kind(paper_tables, "paper"),
    Kind(tables_beside_measured, "paper"),
    Kind(whole_grid.sources_table, "sources"),
    Kind(whole_grid.costs_tables, "costs"),
    Kind(whole_grid.short_classes_table, "short_classes"),
    Kind(whole_grid.missing_table, "missing"),
    Kind(whole_grid.left_out_table, "left_out"),
    Kind(whole_grid.cells_without_result_table, "files"),
]


def report_tables(grid: GridResults) -> dict[ComparisonGroup | None, Tables]:
    """Make all tables: those of every group and, under the key ``None``, those of the whole report."""
    whole: dict[str, list[Table]] = defaultdict(list)
    for kind in REPORT_TABLES:
        whole[kind.section] += kind.of(grid)
    return {**{group: _group_tables(grid, group) for group in grid.groups}, None: whole}


def _group_tables(grid: GridResults, group: ComparisonGroup) -> Tables:
    """Make the tables of one group."""
    sections: dict[str, list[Table]] = defaultdict(list)
    for kind in GROUP_TABLES:
        tables = kind.of(grid, group)
        hidden = kind.section == "lead" and kind.name not in group.track.lead_tables
        if kind.replaces_main and not hidden and [len(table.rows) for table in tables] == [len(group.methods)]:
            sections["files"] += sections["lead"][:1]
            sections["lead"][:1] = tables
        else:
            sections["files" if hidden else kind.section] += tables
    return sections


def group_figures(grid: GridResults, group: ComparisonGroup) -> Figures:
    """Draw the figures of one group.

    A group of a changed protocol has no figures, because a table shows what the change does. A group of ablations has
    only figures of variants, if there are any: the other figures would show the same numbers again.
    """
    sections: dict[str, list[FigureFile]] = defaultdict(list)
    for kind in sorted(GROUP_FIGURES, key=lambda kind: kind.section != "variants"):
        repeated = group.ablations and kind.section != "variants" and sections["variants"]
        if not repeated and not group.of_changed_protocol:
            sections[kind.section] += kind.of(grid, group)
    return sections
