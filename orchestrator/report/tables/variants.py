"""Variants of one method side by side: a row for each label, in the order of the grid file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import DASH, k_title
from orchestrator.report.tables.common import mean_entry, method_entry, panel_table, with_warnings
from orchestrator.report.tables.table import Table, highlighted_columns, text_entry


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
    settings = {row.method: study.cells[row.cell_id].method.settings_dict() for row in panel.rows}
    keys = sorted({key for label in labels for key in settings[label]})
    differing = [key for key in keys if len({repr(settings[label].get(key)) for label in labels}) > 1]
    rows = []
    for label in labels:
        values = (text_entry(setting_text(settings[label].get(key))) for key in differing)
        rows.append([method_entry(study, label), *values, *(mean_entry(panel, label, k) for k in panel.ks)])
    text_columns = 1 + len(differing)
    note = (
        f"The settings that differ, then mean accuracy in per cent over datasets ± sample standard deviation over "
        f"seeds ({panel.seeds_text}) and the gain over zero-shot in points."
    )
    return panel_table(
        panel,
        f"ablation_{name}",
        f"Variants of {name}",
        note=with_warnings(note, panel),
        header=("variant", *(key.replace("_", " ") for key in differing), *map(k_title, panel.ks)),
        rows=highlighted_columns(rows, text_columns),
        text_columns=text_columns,
    )


def setting_text(value: Any) -> str:
    """The value of a setting as tables print it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
