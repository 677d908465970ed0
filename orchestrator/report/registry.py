"""The tables and figures of a report: one line for each kind, which says what makes it and where it is shown.

``PANEL_TABLES`` and ``PANEL_FIGURES`` are made for every panel, ``STUDY_TABLES`` once for the whole report. To add a
kind, write a function that returns a :class:`Table` or :class:`FigureFile` and add a line here; see
docs/adding-a-report-table.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeVar

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.by_dataset import accuracy_by_dataset, drawn_ks
from orchestrator.report.figures.costs import accuracy_against_costs
from orchestrator.report.figures.critical_difference import critical_difference_figure
from orchestrator.report.figures.curves import accuracy_after_epochs, accuracy_against_k
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.figures.radar import accuracy_radar
from orchestrator.report.figures.variants import accuracy_against_settings, effects_of_variants
from orchestrator.report.paper.paper_tables import paper_tables
from orchestrator.report.tables.accuracy import dataset_table, explorer_table, main_table
from orchestrator.report.tables.costs import costs_table, sources_table
from orchestrator.report.tables.distribution_shift import shift_table
from orchestrator.report.tables.epochs import epochs_table
from orchestrator.report.tables.gaps import cells_without_result_table, missing_table, short_classes_table
from orchestrator.report.tables.published import published_table
from orchestrator.report.tables.ranking import pairs_table, ranks_table
from orchestrator.report.tables.switch_effects import effects_table
from orchestrator.report.tables.table import Table
from orchestrator.report.tables.variants import variants_tables

T = TypeVar("T", Table, FigureFile)

PanelTableSection = Literal["lead", "variants", "datasets", "ranks", "pairs", "files"]
PanelFigureSection = Literal["lead", "variants", "datasets", "costs", "ranks"]
StudyTableSection = Literal[
    "datasets", "switches", "published", "paper", "sources", "costs", "short_classes", "missing", "files"
]
PanelFigures = dict[PanelFigureSection, list[FigureFile]]
"""The figures of one panel, by section of the page."""


@dataclass(frozen=True)
class PanelTable:
    """A kind of table that every panel has.

    Attributes:
        name: names the kind in a track's ``lead_tables``; file names begin with it.
        make: ``make(study, panel)`` gives the tables; none if the panel has nothing to show.
        section: where the page shows it. ``lead``: at the top, if the panel's track lists it in ``lead_tables``.
            ``files``: not on the page, but as a file.
        always: whether a ``lead`` table is written as a file even if the track does not list it.
        includes: a table that this one contains if there is only one k; the page then leaves that table out.
    """

    name: str
    make: Callable[[Study, Panel], Iterable[Table]]
    section: PanelTableSection
    always: bool = True
    includes: str = ""


@dataclass(frozen=True)
class PanelFigure:
    """A kind of figure that every panel has; see :class:`PanelTable`. A track lists it in ``lead_figures``."""

    name: str
    make: Callable[[Study, Panel], Iterable[FigureFile]]
    section: PanelFigureSection


@dataclass(frozen=True)
class StudyTable:
    """A kind of table that a report has once. Empty tables are left out of the page."""

    name: str
    make: Callable[[Study], Iterable[Table]]
    section: StudyTableSection


def once(make: Callable[[Study, Panel], T | None]) -> Callable[[Study, Panel], Iterator[T]]:
    """For a function that makes one table or figure of a panel, or ``None``."""
    return lambda study, panel: _given([make(study, panel)])


def each_k(
    make: Callable[[Study, Panel, int], T | None], ks: Callable[[Panel], Iterable[int]] = lambda panel: panel.ks
) -> Callable[[Study, Panel], Iterator[T]]:
    """For a function that makes one table or figure of a panel at one k, or ``None``."""
    return lambda study, panel: _given(make(study, panel, k) for k in ks(panel))


def once_a_report(make: Callable[[Study], Table | None]) -> Callable[[Study], Iterator[Table]]:
    """For a function that makes one table of the whole report, or ``None``."""
    return lambda study: _given([make(study)])


def each_track(make: Callable[[Study, str], Table]) -> Callable[[Study], Iterator[Table]]:
    """For a function that makes one table of a track."""
    return lambda study: (make(study, track) for track in study.tracks)


def _given(made: Iterable[T | None]) -> Iterator[T]:
    return (one for one in made if one is not None)


PANEL_TABLES = [
    PanelTable("main", once(main_table), "lead"),
    PanelTable("datasets", each_k(dataset_table), "lead"),
    PanelTable("shift", each_k(shift_table), "lead", always=False, includes="main"),
    PanelTable("epochs", each_k(epochs_table), "lead", always=False),
    PanelTable("ablation", variants_tables, "variants"),
    PanelTable("ranks", once(ranks_table), "ranks"),
    PanelTable("pairs", each_k(pairs_table), "pairs"),
]

PANEL_FIGURES = [
    PanelFigure("accuracy", once(accuracy_against_k), "lead"),
    PanelFigure("epochs", each_k(accuracy_after_epochs), "lead"),
    PanelFigure("settings", accuracy_against_settings, "variants"),
    PanelFigure("variants", effects_of_variants, "variants"),
    PanelFigure("bars", accuracy_by_dataset, "datasets"),
    PanelFigure("radar", each_k(accuracy_radar, drawn_ks), "datasets"),
    PanelFigure("costs", once(accuracy_against_costs), "costs"),
    PanelFigure("critical_difference", each_k(critical_difference_figure), "ranks"),
]

STUDY_TABLES = [
    StudyTable("explorer", each_track(explorer_table), "datasets"),
    StudyTable("effects", once_a_report(effects_table), "switches"),
    StudyTable("published", once_a_report(published_table), "published"),
    StudyTable("paper", paper_tables, "paper"),
    StudyTable("sources", once_a_report(sources_table), "sources"),
    StudyTable("costs", each_track(costs_table), "costs"),
    StudyTable("short_classes", once_a_report(short_classes_table), "short_classes"),
    StudyTable("missing", once_a_report(missing_table), "missing"),
    StudyTable("cells_without_result", once_a_report(cells_without_result_table), "files"),
]


@dataclass(frozen=True)
class PanelTables:
    """The tables of one panel: all of them, and those of each section of the page."""

    all: tuple[Table, ...]
    sections: dict[PanelTableSection, list[Table]]


def panel_tables(study: Study, panel: Panel) -> PanelTables:
    """Make the tables of one panel.

    If the panel holds nothing but variants of one method, their table (``ablation``) replaces the first lead table,
    which would have the same rows.
    """
    lead_names = panel.track.lead_tables
    _check(panel, lead_names, [line.name for line in PANEL_TABLES if line.section == "lead"])
    lines = [line for line in PANEL_TABLES if line.always or line.name in lead_names]
    made = {line.name: tuple(line.make(study, panel)) for line in lines}
    included = {line.includes for line in lines if line.name in lead_names and len(panel.ks) == 1}
    sections: dict[PanelTableSection, list[Table]] = {
        "lead": [], "variants": [], "datasets": [], "ranks": [], "pairs": [], "files": []
    }  # fmt: skip
    sections["lead"] = [table for name in lead_names if name not in included for table in made[name]]
    for line in lines:
        if line.section != "lead":
            sections[line.section] += made[line.name]
    variants = made.get("ablation", ())
    if [len(table.rows) for table in variants] == [len(panel.methods)]:
        sections["lead"][:1] = variants
        sections["variants"] = [table for table in sections["variants"] if table not in variants]
    return PanelTables(tuple(table for tables in made.values() for table in tables), sections)


def panel_figures(study: Study, panel: Panel) -> PanelFigures:
    """Make the figures of one panel, by section of the page.

    A panel of a changed protocol has none: a table shows its effect. A panel of ablations has only figures of variants,
    if there are any: the other figures would show the same numbers again.
    """
    sections: PanelFigures = {
        "lead": [], "variants": [], "datasets": [], "costs": [], "ranks": []
    }  # fmt: skip
    if panel.of_changed_protocol:
        return sections
    lead_names = panel.track.lead_figures
    _check(panel, lead_names, [line.name for line in PANEL_FIGURES if line.section == "lead"])
    lines = [line for line in PANEL_FIGURES if line.section != "lead" or line.name in lead_names]
    for line in lines:
        if line.section == "variants":
            sections[line.section] += line.make(study, panel)
    if panel.key.ablations and sections["variants"]:
        return sections
    for line in lines:
        if line.section != "variants":
            sections[line.section] += line.make(study, panel)
    return sections


def _check(panel: Panel, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise ``ValueError`` if the panel's track names a lead table or figure that is not registered."""
    for name in names:
        if name not in known:
            raise ValueError(f"track {panel.key.track}: the report has no {name!r} to show first, only {sorted(known)}")


def study_tables(study: Study) -> dict[StudyTableSection, list[Table]]:
    """Make the tables that belong to no panel, by section of the page."""
    sections: dict[StudyTableSection, list[Table]] = {}
    for line in STUDY_TABLES:
        sections.setdefault(line.section, []).extend(line.make(study))
    return sections
