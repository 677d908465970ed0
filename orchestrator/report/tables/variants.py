"""Variants of one method side by side: a row for each label, in the order of the grid file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import seeds_text
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import DASH, k_title
from orchestrator.report.tables.common import method_entry, with_warnings
from orchestrator.report.tables.table import Table, highlighted_columns, measured, text_entry, with_dagger


def variants_tables(study: Study, panel: Panel) -> Iterator[Table]:
    """One table for each method that has several labels in the panel."""
    variants: dict[str, list[str]] = {}
    for label in study.methods:
        if label in panel.methods:
            variants.setdefault(study.method_names[label], []).append(label)
    for name, labels in variants.items():
        if len(labels) > 1:
            yield _variants_table(study, panel, name, labels)


def _variants_table(study: Study, panel: Panel, name: str, labels: list[str]) -> Table:
    """Label, the settings that differ, and the mean over datasets at each k."""
    methods = {result.cell.id: result.cell.method for result in study.results}
    settings = {row.method: methods[row.cell_id].settings_dict() for row in panel.rows}
    keys = sorted({key for label in labels for key in settings[label]})
    differing = [key for key in keys if len({repr(settings[label].get(key)) for label in labels}) > 1]
    rows = []
    for label in labels:
        entries = [
            method_entry(study, label),
            *(text_entry(setting_text(settings[label].get(key))) for key in differing),
        ]
        for k in panel.ks:
            mean = panel.mean(label, k)
            entries.append(
                measured(
                    mean.accuracy,
                    gain=mean.gain.mean if mean.gain else None,
                    missing=f"({mean.available}/{mean.expected} datasets)",
                    seeds=panel.expected_seeds(label),
                )
            )
        rows.append(entries)
    text_columns = 1 + len(differing)
    note = (
        f"The settings that differ, then mean accuracy in per cent over datasets ± sample standard deviation over "
        f"seeds ({seeds_text(panel)}) and the gain over zero-shot in points."
    )
    return Table(
        name=f"ablation_{name}_{panel.key.slug}",
        title=f"Variants of {name}, {panel.title}",
        note=with_warnings(note, panel),
        header=("variant", *(key.replace("_", " ") for key in differing), *map(k_title, panel.ks)),
        rows=tuple(with_dagger(row, panel.selects_on_test) for row in highlighted_columns(rows, text_columns)),
        text_columns=text_columns,
    )


def setting_text(value: Any) -> str:
    """The value of a setting as tables print it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
