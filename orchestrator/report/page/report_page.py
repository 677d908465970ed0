"""The HTML page of a report: one file, made from a study and its tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.report.analysis.critical_difference import critical_difference
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.verdict import SUPPORT_TEXTS, verdict_groups, verdicts_of
from orchestrator.report.notation import SELECTED_NOTE, k_title
from orchestrator.report.page.conditions import conditions
from orchestrator.report.page.rendering import render
from orchestrator.report.registry import PanelFigures, PanelTables, StudyTables


def render_page(
    study: Study,
    *,
    grid_name: str,
    title: str,
    description: str,
    panel_tables: Mapping[Panel, PanelTables],
    panel_figures: Mapping[Panel, PanelFigures],
    tables: StudyTables,
    files_beside: Sequence[str] = (),
) -> str:
    """The whole page. It depends on its arguments alone: the same results give the same bytes."""
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}
    planned = {cell.id for cell in study.planned}
    return render(
        "report.html.j2",
        title=title or grid_name,
        grid_name=grid_name,
        description=description,
        study=study,
        panel_tables=panel_tables,
        panel_figures=panel_figures,
        groups=verdict_groups(study.panels),
        verdicts_of=verdicts_of,
        unranked=_unranked,
        selecting=sorted({panel.key.protocol for panel in study.panels if panel.selects_on_test}),
        selected_note=SELECTED_NOTE,
        support_texts=SUPPORT_TEXTS,
        tables={section: [table for table in own if table.rows] for section, own in tables.items()},
        source_means=_source_means(study),
        finished=len(planned & finished) if planned else len(finished),
        planned=len(planned) or len(finished | failed),
        finished_ids=finished,
        conditions=conditions(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def _unranked(panel: Panel) -> list[str]:
    """Why there is no critical difference, at the k that have none."""
    reasons: dict[str, list[int]] = {}
    for k in panel.ks:
        result = critical_difference(panel, k)
        if isinstance(result, str):
            reasons.setdefault(result, []).append(k)
    return [
        reason if len(ks) == len(panel.ks) else f"At {', '.join(map(k_title, ks))}: {reason[0].lower()}{reason[1:]}"
        for reason, ks in reasons.items()
    ]


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
