"""What the tables of a panel have in common: entries of method names, and notes on classes and images."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.rows import Row
from orchestrator.report.analysis.study import Study
from orchestrator.report.tables.table import Entry, text_entry


def method_entry(study: Study, method: str) -> Entry:
    """A method's label with its colour."""
    return text_entry(method, colour=study.styles[method].colour)


def with_warnings(note: str, panel: Panel) -> str:
    """The note, followed by warnings: classes with fewer than k images, and methods scored on other images."""
    short: dict[tuple[int, str], Row] = {(row.k, row.dataset): row for row in panel.rows if row.short_classes}
    warnings = [
        f"{dataset}: {row.short_classes} of {row.classes} classes have fewer than {k} training images; all were taken."
        for (k, dataset), row in sorted(short.items())
    ]
    if len(warnings) > 3:
        count = len(warnings)
        warnings = [f"{count} times a class has fewer than k training images (table short_classes); all were taken."]
    if panel.scored_on_other_images:
        methods = ", ".join(panel.scored_on_other_images)
        warnings.append(f"Scored on other images than the rest: {methods}; compare gains, not accuracies.")
    return " ".join([note, *warnings])
