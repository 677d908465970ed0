"""The tables of a report that count rather than compare: sources, costs, published numbers, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from orchestrator.core.cell import Cell
from orchestrator.report.analysis.panel import TRACK_TITLES
from orchestrator.report.analysis.rows import Row, SourceRow
from orchestrator.report.analysis.statistics import summarize
from orchestrator.report.analysis.study import Study
from orchestrator.report.styles import Styles
from orchestrator.report.tables.comparison import method_entry
from orchestrator.report.tables.table import (
    Entry,
    Table,
    difference,
    flagged,
    measured,
    number,
    without_constant_columns,
    word,
)
from orchestrator.report.text import DASH
from orchestrator.util.identity import slug


def sources_table(sources: Sequence[SourceRow]) -> Table:
    """Source models on their own tasks, fine-tuned against zero-shot."""
    rows = [
        (
            word(s.dataset),
            word(s.domain),
            word(s.backbone),
            number(s.zero_shot_accuracy),
            number(s.fine_tuned_accuracy),
            difference(s.fine_tuned_accuracy - s.zero_shot_accuracy),
            number(s.total, "d"),
        )
        for s in sources
    ]
    header = ("dataset", "domain", "backbone", "zero-shot", "fine-tuned", "gain", "test images")
    note = "Accuracy in per cent of each source model on its own task's test split, beside the backbone it began as."
    return Table("sources", "Source models on their own task", note, header, tuple(rows), words=3)


def costs_table(rows: Sequence[Row], track: str, styles: Styles) -> Table:
    """What each method costs per cell on one track, by backbone and protocol."""
    rows = [row for row in rows if row.track == track]
    ks = sorted({row.k for row in rows} - {0})
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in {row.cell_id: row for row in rows}.values():
        groups[row.backbone, row.protocol, row.method].append(row)
    methods, protocols = list(styles), list(dict.fromkeys(row.protocol for row in rows))

    def place(group: tuple[str, str, str]) -> tuple[str, int, int]:
        return group[0], protocols.index(group[1]), methods.index(group[2])

    lines = []
    for (backbone, protocol, method), own in sorted(groups.items(), key=lambda item: place(item[0])):
        parameters = sorted({row.trainable_parameters for row in own})
        ends = dict.fromkeys((f"{parameters[0]:,}", f"{parameters[-1]:,}"))
        fits = [[row.fit_seconds for row in own if row.k in (0, k)] for k in ks or [0]]
        line = (
            method_entry(method, styles),
            word(backbone),
            word(protocol),
            Entry(f" {DASH} ".join(ends), value=float(parameters[-1])),
            *(number(median(fit) if fit else None) for fit in fits),
            number(median(row.eval_seconds for row in own)),
            number(max(row.peak_memory_mib for row in own), ",.0f"),
            number(len(own), "d"),
        )
        lines.append(flagged(line, any(row.selects_on_test for row in own)))
    fit_titles = [f"fit s, k = {k}" for k in ks] or ["fit s"]
    table = Table(
        name=f"costs_{slug(track)}",
        title=f"Costs per cell, {TRACK_TITLES.get(track, track)}",
        note="Trained numbers (smallest and largest over datasets), median seconds to adapt and to score, largest peak "
        "memory in MiB. Seconds are wall-clock on the machines that ran the cells and include waiting for others.",
        header=("method", "backbone", "protocol", "trained", *fit_titles, "score s", "peak MiB", "cells"),
        rows=tuple(lines),
        words=3,
    )
    return without_constant_columns(table, 2, 3)


def short_classes_table(study: Study) -> Table:
    """Cells whose classes do not all have k training images, by dataset, k and protocol."""
    groups: dict[tuple[str, str, int, str], Row] = {}
    for row in study.rows:
        if row.short_classes:
            groups[row.dataset, row.domain, row.k, row.protocol] = row
    lines = [
        flagged(
            (
                word(dataset),
                word(domain),
                word(protocol),
                number(k, "d"),
                number(row.short_classes, "d"),
                number(row.classes, "d"),
            ),
            row.selects_on_test,
        )
        for (dataset, domain, k, protocol), row in sorted(groups.items())
    ]
    header = ("dataset", "domain", "protocol", "k", "short classes", "classes")
    note = "Classes with fewer than k training images. The protocol takes all that there are, so k is not met there."
    return Table("short_classes", "Classes with fewer than k images", note, header, tuple(lines), words=3)


def published_table(study: Study) -> Table | None:
    """Measured beside published, one line per place that has a published number; ``None`` if no row has one.

    Variants of a method that stands there as it is are left out: the paper printed none of them.
    """
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    plain = {row.method_name for row in study.rows if row.method == row.method_name}
    for row in study.rows:
        if row.published is not None and (row.method == row.method_name or row.method_name not in plain):
            key = (row.track, row.protocol, row.backbone, row.domain, row.test, str(row.k), row.method)
            groups[key].append(row)
    if not groups:
        return None
    rows = []
    for (track, protocol, backbone, domain, test, k, method), own in groups.items():
        published = summarize([row.published for row in own if row.published is not None]).mean
        accuracy = summarize([row.accuracy for row in own])
        words = [word(text) for text in (test, method, track, protocol, domain, backbone)]
        delta = difference(accuracy.mean - published)
        line = (*words, number(int(k), "d"), measured(accuracy), number(published), delta)
        rows.append(flagged(line, any(row.selects_on_test for row in own)))
    header = ("dataset", "method", "track", "protocol", "domain", "backbone", "k", "measured", "published", "delta")
    note = "Measured (mean ± sample standard deviation over seeds) beside the published accuracy, in per cent."
    table = Table("published", "Measured beside published", note, header, tuple(rows), words=6)
    return without_constant_columns(table, 2, 6)


def missing_table(study: Study) -> Table:
    """Planned, finished, failed and missing cells of every method and k that is not complete."""
    finished = {result.cell.id for result in study.results}
    failed = {failure.id for failure in study.failures} - finished
    counts: dict[tuple[str, str, str, str, str, int], Counter[str]] = defaultdict(Counter)
    lacking: dict[tuple[str, str, str, str, str, int], list[str]] = defaultdict(list)
    for cell in study.planned:
        key = (study.labels[cell.id], cell.track, cell.protocol.name, cell.domain, cell.backbone.name, cell.shots)
        state = "finished" if cell.id in finished else "failed" if cell.id in failed else "missing"
        counts[key].update((state, "planned"))
        if state != "finished":
            lacking[key].append(cell_words(cell))
    rows = []
    for key, count in counts.items():
        if lacking[key]:
            method, track, protocol, domain, backbone, k = key
            shown, more = lacking[key][:8], len(lacking[key]) - 8
            which = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
            words = [word(text) for text in (method, track, protocol, domain, backbone, which)]
            numbers = [number(count[state], "d") for state in ("planned", "finished", "failed", "missing")]
            rows.append((*words, number(k, "d"), *numbers))
    names = ("method", "track", "protocol", "domain", "backbone", "which")
    header = (*names, "k", "planned", "finished", "failed", "missing")
    note = "Only what is not complete is listed; every cell that lacks a result is in tables/cells_without_result.csv."
    table = Table("missing", "Cells without a result", note, header, tuple(rows), words=6)
    return without_constant_columns(table, 2, 3)


def cells_table(study: Study) -> Table:
    """Every planned cell without a result, and every failure, one line each."""
    finished = {result.cell.id for result in study.results}
    failures = {failure.id: failure for failure in study.failures}
    ids = [cell.id for cell in study.planned if cell.id not in finished]
    ids += [id_ for id_ in failures if id_ not in set(ids)]
    rows = [
        (word(id_), word("failed"), word(failures[id_].error), word(failures[id_].log))
        if id_ in failures
        else (word(id_), word("missing"), word(""), word(""))
        for id_ in ids
    ]
    note = "Failed cells with their error and log; a missing cell was not run, or not to its end."
    header = ("cell", "state", "error", "log")
    return Table("cells_without_result", "Cells without a result", note, header, tuple(rows), words=4)


def cell_words(cell: Cell) -> str:
    """A cell inside its group: dataset and seed."""
    return f"{cell.dataset.name} seed {cell.seed}" if cell.shots or cell.seed else cell.dataset.name
