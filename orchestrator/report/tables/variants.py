"""Several settings of one method side by side: a line per label, in the order of the grid file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import expected_seeds, panel_slug, seeds_words
from orchestrator.report.analysis.study import Study
from orchestrator.report.styles import Styles
from orchestrator.report.tables.comparison import method_entry, with_notes
from orchestrator.report.tables.table import Table, flagged, marked_columns, measured, word
from orchestrator.report.text import DASH, k_title


def ablation_tables(study: Study, panel: Panel, styles: Styles) -> Iterator[Table]:
    """One table for each method that the panel holds under several labels."""
    variants: dict[str, list[str]] = {}
    for label in study.methods:
        if label in panel.methods:
            variants.setdefault(study.method_names[label], []).append(label)
    for name, labels in variants.items():
        if len(labels) > 1:
            yield _ablation_table(study, panel, name, labels, styles)


def _ablation_table(study: Study, panel: Panel, name: str, labels: list[str], styles: Styles) -> Table:
    """Label, the settings that differ, and the mean over datasets at each k."""
    settings = _settings(study, panel)
    keys = sorted({key for label in labels for key in settings[label]})
    differing = [key for key in keys if len({repr(settings[label].get(key)) for label in labels}) > 1]
    rows = []
    for label in labels:
        entries = [method_entry(label, styles)]
        entries += [word(setting_words(settings[label].get(key))) for key in differing]
        for k in panel.ks:
            mean = panel.mean(label, k)
            entries.append(
                measured(
                    mean.accuracy,
                    gain=mean.gain.mean if mean.gain else None,
                    missing=f"({mean.have}/{mean.of} datasets)",
                    seeds=expected_seeds(panel, label),
                )
            )
        rows.append(entries)
    words = 1 + len(differing)
    note = (
        f"The settings that differ, then mean accuracy in per cent over datasets ± sample standard deviation over "
        f"seeds ({seeds_words(panel)}) and the gain over zero-shot in points."
    )
    return Table(
        name=f"ablation_{name}_{panel_slug(panel)}",
        title=f"Variants of {name}, {panel.title}",
        note=with_notes(note, panel),
        header=("variant", *(key.replace("_", " ") for key in differing), *map(k_title, panel.ks)),
        rows=tuple(flagged(row, panel.selects_on_test) for row in marked_columns(rows, words)),
        words=words,
    )


def _settings(study: Study, panel: Panel) -> dict[str, dict[str, Any]]:
    """The settings that each label of the panel stands for."""
    methods = {result.cell.id: result.cell.method for result in study.results}
    return {row.method: methods[row.cell_id].settings_dict() for row in panel.rows}


def setting_words(value: Any) -> str:
    """A setting as a table prints it."""
    if value is None or value == ():
        return DASH
    if isinstance(value, tuple | list):
        return ", ".join(map(setting_words, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
