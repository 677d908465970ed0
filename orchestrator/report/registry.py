"""The tables and figures of a report: one line for each kind, which says what makes it and where it is shown.

``PANEL_TABLES`` and ``PANEL_FIGURES`` are made for every panel, ``STUDY_TABLES`` once for the whole report. To add a
kind, write a function that returns a :class:`Table` or :class:`FigureFile`, import it here and add a line to a list;
see docs/adding-a-report-table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
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

PanelTableSection = Literal["lead", "variants", "datasets", "verdict", "files"]
PanelFigureSection = Literal["lead", "variants", "datasets", "costs", "published"]
StudyTableSection = Literal[
    "datasets", "switches", "published", "paper", "sources", "costs", "short_classes", "missing", "files"
]

# Section of the page -> its tables or figures: those of one panel, and those that belong to no panel.
PanelTables = dict[PanelTableSection, list[Table]]
PanelFigures = dict[PanelFigureSection, list[FigureFile]]
StudyTables = dict[StudyTableSection, list[Table]]


@dataclass(frozen=True)
class PanelTable:
    """A kind of table that every panel has.

    Attributes:
        name: names the kind in a track's ``lead_tables``; file names begin with it.
        make: ``make(study, panel)`` gives one table or several; ``None`` or none if the panel has nothing to show.
        section: where the page shows it. ``lead``: at the top, if the panel's track lists it in ``lead_tables``.
            ``files``: not on the page, but as a file.
        always: whether a ``lead`` table is written as a file even if the track does not list it.
        includes: a table that this one contains if there is only one k; the page then leaves that table out.
    """

    name: str
    make: Callable[[Study, Panel], Table | Iterable[Table] | None]
    section: PanelTableSection
    always: bool = True
    includes: str = ""


@dataclass(frozen=True)
class PanelFigure:
    """A kind of figure that every panel has; see :class:`PanelTable`. A track lists it in ``lead_figures``."""

    name: str
    make: Callable[[Study, Panel], FigureFile | Iterable[FigureFile] | None]
    section: PanelFigureSection


def ks_of(panel: Panel) -> Iterable[int]:
    """Return every k of a panel."""
    return panel.ks


def each_k(
    make: Callable[[Study, Panel, int], T | None], ks: Callable[[Panel], Iterable[int]] = ks_of
) -> Callable[[Study, Panel], Iterator[T]]:
    """Adapt a function that makes one table or figure of a panel at one k, or ``None``."""
    return partial(_at_each_k, make, ks)


def _at_each_k(
    make: Callable[[Study, Panel, int], T | None], ks: Callable[[Panel], Iterable[int]], study: Study, panel: Panel
) -> Iterator[T]:
    return (made for k in ks(panel) if (made := make(study, panel, k)) is not None)


PANEL_TABLES = [
    PanelTable("main", main_table, "lead"),
    PanelTable("datasets", each_k(dataset_table), "lead"),
    PanelTable("shift", each_k(shift_table), "lead", always=False, includes="main"),
    PanelTable("base_to_new", each_k(base_to_new_table), "lead", always=False),
    PanelTable("epochs", each_k(epochs_table), "lead", always=False),
    PanelTable("ablation", variants_tables, "variants"),
    PanelTable("verdict", verdict_tables, "verdict"),
]

PANEL_FIGURES = [
    PanelFigure("settings", accuracy_against_settings, "variants"),
    PanelFigure("variants", effects_of_variants, "variants"),
    PanelFigure("accuracy", accuracy_against_k, "lead"),
    PanelFigure("epochs", each_k(accuracy_after_epochs), "lead"),
    PanelFigure("dots", each_k(accuracy_by_dataset, drawn_ks), "datasets"),
    PanelFigure("radar", each_k(accuracy_radar, drawn_ks), "published"),
    PanelFigure("costs", accuracy_against_costs, "costs"),
]

STUDY_TABLES: list[tuple[StudyTableSection, Callable[[Study], Table | Iterable[Table] | None]]] = [
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


def panel_tables(study: Study, panel: Panel) -> PanelTables:
    """Make the tables of one panel.

    If the panel holds nothing but variants of one method, their table (``ablation``) replaces the first lead table,
    which would have the same rows.
    """
    lead_names = panel.track.lead_tables
    _check(panel, lead_names, PANEL_TABLES)
    lines = [line for line in PANEL_TABLES if line.always or line.name in lead_names]
    made = {line.name: _as_list(line.make(study, panel)) for line in lines}
    included = {line.includes for line in lines if line.name in lead_names and len(panel.ks) == 1}
    sections: PanelTables = {"lead": [], "variants": [], "datasets": [], "verdict": [], "files": []}
    for line in lines:
        hidden = line.section == "lead" and (line.name not in lead_names or line.name in included)
        sections["files" if hidden else line.section] += made[line.name]
    variants = made["ablation"]
    if [len(table.rows) for table in variants] == [len(panel.methods)]:
        sections["files"] += sections["lead"][:1]
        sections["lead"][:1] = variants
        sections["variants"] = [table for table in sections["variants"] if table not in variants]
    return sections


def panel_figures(study: Study, panel: Panel, kinds: Iterable[PanelFigure]) -> PanelFigures:
    """Draw the figures of one panel. ``kinds`` are ``PANEL_FIGURES``, which another process may lack a line of.

    A panel of a changed protocol has none: a table shows its effect. A panel of ablations has only figures of variants,
    if there are any: the other figures would show the same numbers again.
    """
    sections: PanelFigures = {"lead": [], "variants": [], "datasets": [], "costs": [], "published": []}
    lead_names = panel.track.lead_figures
    _check(panel, lead_names, kinds)
    for kind in sorted(kinds, key=lambda kind: kind.section != "variants"):
        repeated = panel.key.ablations and kind.section != "variants" and sections["variants"]
        listed = kind.section != "lead" or kind.name in lead_names
        if listed and not repeated and not panel.of_changed_protocol:
            sections[kind.section] += _as_list(kind.make(study, panel))
    return sections


def study_tables(study: Study) -> StudyTables:
    """Make the tables that belong to no panel."""
    sections: StudyTables = {}
    for section, make in STUDY_TABLES:
        sections.setdefault(section, []).extend(_as_list(make(study)))
    return sections


def _as_list(made: T | Iterable[T] | None) -> list[T]:
    """Return what a line of the registry has made, as a list."""
    if made is None:
        return []
    return [made] if isinstance(made, Table | FigureFile) else list(made)


def _check(panel: Panel, names: Iterable[str], lines: Iterable[PanelTable | PanelFigure]) -> None:
    """Raise ``ValueError`` if the panel's track names a lead table or figure that is not registered."""
    known = sorted(line.name for line in lines if line.section == "lead")
    for name in names:
        if name not in known:
            raise ValueError(f"track {panel.key.track}: the report has no {name!r} to show first, only {known}")
