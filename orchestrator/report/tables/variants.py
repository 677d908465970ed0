"""Variants of one method side by side: a row for each label, in the order of the grid file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.analysis.display_names import title_of
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.variants import variants_of
from orchestrator.report.notation import DASH, k_title
from orchestrator.report.tables.common import mean_entry, method_entry, panel_table, with_warnings
from orchestrator.report.tables.table import Entry, Table, highlighted_columns


def variants_tables(study: Study, panel: Panel) -> Iterator[Table]:
    """For each method that has several labels in the panel: label, settings that differ, and the mean at each k."""
    for name, variants in variants_of(study, panel).items():
        variants = sorted(variants, key=lambda variant: study.methods.index(variant.label))
        keys = sorted({key for variant in variants for key in variant.settings})
        differing = [key for key in keys if len({repr(variant.settings.get(key)) for variant in variants}) > 1]
        rows = []
        for variant in variants:
            values = (Entry(setting_text(variant.settings.get(key))) for key in differing)
            means = (mean_entry(panel, variant.label, k) for k in panel.ks)
            rows.append([method_entry(study, variant.label), *values, *means])
        note = (
            "The settings that differ, then mean accuracy in per cent over datasets ± sample standard deviation over "
            f"seeds ({panel.seeds_text}) and the gain over zero-shot in points."
        )
        yield panel_table(
            panel,
            f"ablation_{name}",
            f"Variants of {title_of(name)}",
            with_warnings(note, panel, study.display_names),
            header=("variant", *(key.replace("_", " ") for key in differing), *map(k_title, panel.ks)),
            rows=highlighted_columns(rows, 1 + len(differing)),
            text_columns=1 + len(differing),
        )


def setting_text(value: Any) -> str:
    """The value of a setting as tables print it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
