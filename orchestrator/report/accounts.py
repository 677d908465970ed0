"""The tables of a report that count rather than compare: sources, costs, published numbers, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from statistics import median

from orchestrator.cell import Cell
from orchestrator.report.build import Styles, method_entry
from orchestrator.report.rows import Row, SourceRow
from orchestrator.report.statistics import summarize
from orchestrator.report.study import Study
from orchestrator.report.tables import DASH, Entry, Table, difference, measured, number, word


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


def costs_table(rows: Sequence[Row], styles: Styles) -> Table:
    """What each method costs per cell, by backbone."""
    ks = sorted({row.k for row in rows} - {0})
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in {row.cell_id: row for row in rows}.values():
        groups[row.backbone, row.method].append(row)
    order = list(styles)
    lines = []
    for (backbone, method), own in sorted(groups.items(), key=lambda item: (item[0][0], order.index(item[0][1]))):
        parameters = sorted({row.trainable_parameters for row in own})
        ends = dict.fromkeys((f"{parameters[0]:,}", f"{parameters[-1]:,}"))
        fits = [[row.fit_seconds for row in own if row.k in (0, k)] for k in ks or [0]]
        lines.append(
            (
                method_entry(method, styles),
                word(backbone),
                Entry(f" {DASH} ".join(ends), value=float(parameters[-1])),
                *(number(median(fit) if fit else None) for fit in fits),
                number(median(row.eval_seconds for row in own)),
                number(max(row.peak_memory_mib for row in own), ",.0f"),
                number(len(own), "d"),
            )
        )
    fit_titles = [f"fit s, k = {k}" for k in ks] or ["fit s"]
    return Table(
        name="costs",
        title="Costs per cell",
        note="Trained numbers (smallest and largest over datasets), median seconds to adapt and to score, largest peak "
        "memory in MiB. Seconds are wall-clock on the machines that ran the cells and include waiting for others.",
        header=("method", "backbone", "trained", *fit_titles, "score s", "peak MiB", "cells"),
        rows=tuple(lines),
        words=2,
    )


def published_table(study: Study) -> Table | None:
    """Measured beside published, one line per place that has a published number; ``None`` if no row has one."""
    groups: dict[tuple[str, ...], list[Row]] = defaultdict(list)
    for row in study.rows:
        if row.published is not None:
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
        rows.append((*words, number(int(k), "d"), measured(accuracy), number(published), delta))
    header = ("dataset", "method", "track", "protocol", "domain", "backbone", "k", "measured", "published", "delta")
    note = "Measured (mean ± sample standard deviation over seeds) beside the published accuracy, in per cent."
    return Table("published", "Measured beside published", note, header, tuple(rows), words=6)


def missing_table(study: Study) -> Table:
    """Planned, finished, failed and missing cells of every method and k that is not complete."""
    finished = {result.cell.id for result in study.results}
    failed = {failure.id for failure in study.failures} - finished
    counts: dict[tuple[str, str, str, str, int], Counter[str]] = defaultdict(Counter)
    lacking: dict[tuple[str, str, str, str, int], list[str]] = defaultdict(list)
    for cell in study.planned:
        key = (study.labels[cell.id], cell.track, cell.domain, cell.backbone.name, cell.shots)
        state = "finished" if cell.id in finished else "failed" if cell.id in failed else "missing"
        counts[key].update((state, "planned"))
        if state != "finished":
            lacking[key].append(cell_words(cell))
    rows = []
    for key, count in counts.items():
        if lacking[key]:
            method, track, domain, backbone, k = key
            shown, more = lacking[key][:8], len(lacking[key]) - 8
            which = ", ".join(shown) + (f" and {more} more" if more > 0 else "")
            names = [word(text) for text in (method, track, domain, backbone, which)]
            numbers = [number(count[state], "d") for state in ("planned", "finished", "failed", "missing")]
            rows.append((*names, number(k, "d"), *numbers))
    header = ("method", "track", "domain", "backbone", "which", "k", "planned", "finished", "failed", "missing")
    note = "Only what is not complete is listed; every cell that lacks a result is in tables/cells_without_result.csv."
    return Table("missing", "Cells without a result", note, header, tuple(rows), words=5)


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
    return f"{cell.dataset.name} seed {cell.seed}" if cell.shots else cell.dataset.name
