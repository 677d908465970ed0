"""Which tables and figures each panel has: every track is laid out by what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures import (
    accuracy_after_epochs,
    accuracy_against_costs,
    accuracy_against_k,
    accuracy_against_settings,
    accuracy_radar,
    by_dataset,
    effects_of_settings,
)
from orchestrator.report.figures.critical_difference import critical_difference_figure
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.paper.paper_tables import paper_tables
from orchestrator.report.styles import Styles
from orchestrator.report.tables.comparison import dataset_table, explorer_table, main_table, pairs_table, ranks_table
from orchestrator.report.tables.distribution_shift import shift_table
from orchestrator.report.tables.epochs import epochs_table
from orchestrator.report.tables.summary import (
    cells_table,
    costs_table,
    missing_table,
    published_table,
    short_classes_table,
    sources_table,
)
from orchestrator.report.tables.switch_effects import effects_table
from orchestrator.report.tables.table import Table
from orchestrator.report.tables.variants import ablation_tables

_DRAWN_SHOTS = (4, 16)
"""The k whose accuracies by dataset are drawn, as in the literature; the largest k where a grid has neither."""


@dataclass(frozen=True)
class PanelTables:
    """A panel's tables.

    Attributes:
        lead: what answers the track's question; shown at once.
        ablations: variants of one method, a table for each method that has some.
        ranks, pairs: average ranks, and every pair of methods at each k.
        beside: for files only; the page has the same numbers in other tables.
    """

    lead: tuple[Table, ...]
    ablations: tuple[Table, ...]
    ranks: Table
    pairs: tuple[Table, ...]
    beside: tuple[Table, ...]


@dataclass(frozen=True)
class PanelFigures:
    """A panel's figures.

    Attributes:
        lines: the curves; shown at once.
        settings: what the settings of a method do, where it has variants.
        by_dataset, costs: accuracy by dataset, and against what it costs.
        ranks: critical-difference diagrams.
    """

    lines: tuple[FigureFile, ...] = ()
    settings: tuple[FigureFile, ...] = ()
    by_dataset: tuple[FigureFile, ...] = ()
    costs: tuple[FigureFile, ...] = ()
    ranks: tuple[FigureFile, ...] = ()

    @property
    def all(self) -> tuple[FigureFile, ...]:
        """Every figure of the panel."""
        return (*self.lines, *self.settings, *self.by_dataset, *self.costs, *self.ranks)


def panel_tables(study: Study, panel: Panel, styles: Styles) -> PanelTables:
    """The tables of one panel."""
    main = main_table(panel, styles)
    datasets = tuple(dataset_table(panel, k, styles) for k in panel.ks)
    ablations = tuple(ablation_tables(study, panel, styles))
    lead: list[Table] = [main]
    if panel.key.track == "ood":
        shifts = [shift_table(panel, k, styles) for k in panel.ks]
        lead = shifts if len(shifts) == 1 else [main, *shifts]  # at one k, it holds the main table's only column
    elif panel.key.track == "tta":
        lead += datasets
    elif panel.key.track == "meta":
        lead += [table for k in panel.ks if (table := epochs_table(panel, study.curves, k, styles)) is not None]
    if [len(table.rows) for table in ablations] == [len(panel.methods)]:  # the variants are all there is
        lead, ablations = [*ablations, *lead[1:]], ()
    return PanelTables(
        lead=tuple(lead),
        ablations=ablations,
        ranks=ranks_table(panel, styles),
        pairs=tuple(pairs_table(panel, k) for k in panel.ks),
        beside=(main, *datasets),
    )


def panel_figures(study: Study, panel: Panel, styles: Styles) -> PanelFigures:
    """The figures of one panel; none for a single switch, whose effect stands in a table."""
    if panel.of_switch:
        return PanelFigures()
    settings = (*accuracy_against_settings(study, panel, styles), *effects_of_settings(study, panel, styles))
    if panel.key.ablations and settings:  # its methods are variants of one, which other figures would only repeat
        return PanelFigures(settings=settings)
    lines = [accuracy_against_k(panel, styles)]
    if panel.key.track == "meta":
        lines += [accuracy_after_epochs(panel, study.curves, k, styles) for k in panel.ks]
    shots = [k for k in panel.ks if k in _DRAWN_SHOTS] or [panel.ks[-1]]
    drawn = [draw(panel, k, styles) for draw in (by_dataset, accuracy_radar) for k in shots]
    costs = [accuracy_against_costs(panel, shots[-1], styles)]
    return PanelFigures(
        lines=tuple(one for one in lines if one),
        settings=settings,
        by_dataset=tuple(one for one in drawn if one),
        costs=tuple(one for one in costs if one),
        ranks=tuple(one for k in panel.ks if (one := critical_difference_figure(panel, k, styles))),
    )


def tables_of_panel(tables: PanelTables) -> tuple[Table, ...]:
    """All of a panel's tables, each once."""
    every = (*tables.lead, *tables.ablations, tables.ranks, *tables.pairs, *tables.beside)
    return tuple({table.name: table for table in every}.values())


def common_tables(study: Study, styles: Styles) -> Iterator[Table]:
    """The tables that belong to no panel."""
    for track in study.tracks:
        yield explorer_table(study, track)
        yield costs_table(study.rows, track, styles)
    if (effects := effects_table(study)) is not None:
        yield effects
    if study.sources:
        yield sources_table(study.sources)
    if (published := published_table(study)) is not None:
        yield published
    yield from paper_tables(study)
    if (short := short_classes_table(study)).rows:
        yield short
    if study.missing or study.failures:
        yield missing_table(study)
        yield cells_table(study)
