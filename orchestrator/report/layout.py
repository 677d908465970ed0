"""Which tables and figures each panel has: every track is laid out by what is asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.report.ablation import ablation_tables
from orchestrator.report.accounts import (
    cells_table,
    costs_table,
    missing_table,
    published_table,
    short_classes_table,
    sources_table,
)
from orchestrator.report.build import Styles, dataset_table, explorer_table, main_table, pairs_table, ranks_table
from orchestrator.report.drawing import FigureFile
from orchestrator.report.effects import effects_table
from orchestrator.report.epochs import epochs_table
from orchestrator.report.figures import accuracy_after_epochs, accuracy_against_k, by_dataset
from orchestrator.report.panel import Panel
from orchestrator.report.shift import shift_table
from orchestrator.report.study import Study
from orchestrator.report.tables import Table

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
    """A panel's figures: the curves, and those by dataset."""

    lines: tuple[FigureFile, ...] = ()
    by_dataset: tuple[FigureFile, ...] = ()


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
    lines = [accuracy_against_k(panel, styles)]
    if panel.key.track == "meta":
        lines += [accuracy_after_epochs(panel, study.curves, k, styles) for k in panel.ks]
    drawn = [by_dataset(panel, k, styles) for k in ([k for k in panel.ks if k in _DRAWN_SHOTS] or [panel.ks[-1]])]
    return PanelFigures(tuple(one for one in lines if one), tuple(one for one in drawn if one))


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
    if (short := short_classes_table(study)).rows:
        yield short
    if study.missing or study.failures:
        yield missing_table(study)
        yield cells_table(study)
