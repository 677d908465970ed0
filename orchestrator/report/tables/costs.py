"""What methods cost, and how good the source models are that they start from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median

from orchestrator.analysis.rows import Row
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import DASH
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import Entry, Table, difference, number, with_dagger
from orchestrator.tracks import stored_track
from orchestrator.util.identity import slug


def costs_tables(study: Study) -> Iterator[Table]:
    """For each track, what a cell of each method costs: parameters, seconds and memory, by backbone and protocol."""
    return (_costs_table(study, track) for track in study.tracks)


def _costs_table(study: Study, track: str) -> Table:
    rows = [row for row in study.rows if row.track == track]
    ks = sorted({row.k for row in rows} - {0})
    groups: dict[tuple[str, str, str], list[Row]] = defaultdict(list)
    for row in {row.cell_id: row for row in rows}.values():
        groups[row.backbone, row.protocol, row.method].append(row)
    protocols = list(dict.fromkeys(row.protocol for row in rows))
    order = sorted(groups, key=lambda group: (group[0], protocols.index(group[1]), study.methods.index(group[2])))
    lines = []
    for backbone, protocol, method in order:
        own = groups[backbone, protocol, method]
        parameters = sorted({row.trainable_parameters for row in own})
        smallest_and_largest = dict.fromkeys((f"{parameters[0]:,}", f"{parameters[-1]:,}"))
        fits = [[row.fit_seconds for row in own if row.k in (0, k)] for k in ks or [0]]
        line = (
            method_entry(study, method),
            Entry(backbone),
            Entry(protocol),
            Entry(f" {DASH} ".join(smallest_and_largest), value=float(parameters[-1])),
            *(number(median(fit) if fit else None) for fit in fits),
            number(median(row.eval_seconds for row in own)),
            number(max(row.peak_memory_mib for row in own), ",.0f"),
            number(len(own), "d"),
        )
        lines.append(with_dagger(line, any(row.selects_on_test for row in own)))
    fit_titles = [f"fit s, k = {k}" for k in ks] or ["fit s"]
    note = (
        "Trained numbers (smallest and largest over datasets), median seconds to adapt and to score, largest peak "
        "memory in MiB. Seconds are wall-clock on the machines that ran the cells and include waiting for others."
    )
    title = f"Costs per cell, {stored_track(track).title}"
    header = ("method", "backbone", "protocol", "trained", *fit_titles, "score s", "peak MiB", "cells")
    table = Table(f"costs_{slug(track)}", title, note, header, tuple(lines), text_columns=3)
    return table.without_constant_columns(2, 3)


def sources_table(study: Study) -> Table | None:
    """Accuracy of every source model on its own task, fine-tuned and zero-shot; ``None`` without source models.

    A column with remarks is there if some model gains nothing.
    """
    if not study.sources:
        return None
    some_without_gain = any(source.gain <= 0 for source in study.sources)
    rows = []
    for source in study.sources:
        texts = (source.dataset, source.domain, source.backbone, "no gain" if source.gain <= 0 else "")
        numbers = (number(source.zero_shot_accuracy), number(source.fine_tuned_accuracy), difference(source.gain))
        rows.append((*map(Entry, texts), *numbers, number(source.total, "d")))
    note = (
        "Accuracy in per cent of each source model on its own task's test split, and of the backbone before "
        "fine-tuning."
    )
    if some_without_gain:
        note += (
            " Without gain: fine-tuning has not helped on the model's own task; sources: {min_gain: 0.1} leaves such "
            "models out."
        )
    titles = ("dataset", "domain", "backbone", "remark")
    header = (*titles, "zero-shot", "fine-tuned", "gain", "test images")
    table = Table("sources", "Source models on their own task", note, header, tuple(rows), text_columns=len(titles))
    return table if some_without_gain else table.without_columns([3])
