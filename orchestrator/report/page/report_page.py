"""The HTML page of a report: one file, made from a study and its tables and figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from orchestrator.analysis.display_names import title_of
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import SELECTED_NOTE
from orchestrator.report.page.conditions import conditions
from orchestrator.report.page.first_screen import answer_groups
from orchestrator.report.page.rendering import render
from orchestrator.report.registry import PanelFigures, PanelTables, StudyTables
from orchestrator.util.units import pluralize


def render_page(
    study: Study,
    *,
    panel_tables: Mapping[Panel, PanelTables],
    panel_figures: Mapping[Panel, PanelFigures],
    tables: StudyTables,
    files_beside: Sequence[str] = (),
    inspected: Collection[str] = (),
) -> str:
    """The whole page. It depends on its arguments alone: the same results give the same bytes.

    Args:
        inspected: ids of the cells that have a page of their own in ``../cells``.
    """
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}
    planned = {cell.id for cell in study.planned}
    groups = answer_groups(study, panel_figures)
    return render(
        "report.html.j2",
        title=study.title or study.grid_name,
        study=study,
        panel_tables=panel_tables,
        panel_figures=panel_figures,
        groups=groups,
        shown_above={answer["figure"].name for _, answers in groups for answer in answers if answer["figure"]},
        methods_text=_methods_text(study),
        method_summaries={title_of(study.method_names[label]): summary for label, summary in study.summaries.items()},
        command=f"python -m orchestrator report {study.grid_name}",
        script_data={"inspected": sorted(inspected)},
        selecting=sorted({panel.key.protocol for panel in study.panels if panel.selects_on_test}),
        selected_note=SELECTED_NOTE,
        tables={section: [table for table in own if table.rows] for section, own in tables.items()},
        source_means=_source_means(study),
        finished=len(planned & finished) if planned else len(finished),
        planned=len(planned) or len(finished | failed),
        finished_ids=finished,
        conditions=conditions(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def _methods_text(study: Study) -> str:
    """How many methods there are, and how many variants beside them: ``11 methods, 8 variants``."""
    methods = len(set(study.method_names.values()))
    variants = len(study.methods) - methods
    return pluralize(methods, "method") + (f", {pluralize(variants, 'variant')}" if variants else "")


def _source_means(study: Study) -> list[dict[Any, Any]]:
    """For each backbone and domain, the source models' mean accuracy on their own tasks, fine-tuned and zero-shot."""
    import pandas as pd

    if not study.sources:
        return []
    sources = pd.DataFrame(study.sources)
    sources["below"] = sources["fine_tuned_accuracy"] < sources["zero_shot_accuracy"]
    means = sources.groupby(["backbone", "domain"], sort=False).agg(
        count=("dataset", "size"),
        zero_shot=("zero_shot_accuracy", "mean"),
        fine_tuned=("fine_tuned_accuracy", "mean"),
        below=("below", "sum"),
    )
    return means.reset_index().to_dict("records")
