"""The HTML page of a report: one file, made from a study and its tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.report.analysis.critical_difference import critical_difference
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.analysis.verdict import SUPPORT_TEXTS, Verdict, headline, verdicts_of
from orchestrator.report.notation import SELECTED_NOTE, k_title
from orchestrator.report.page.conditions import conditions
from orchestrator.report.page.rendering import PageTable, page_table, render
from orchestrator.report.registry import PanelFigures, PanelTableSection, StudyTableSection
from orchestrator.report.tables.table import Table
from orchestrator.tracks import stored_track

PanelSections = Mapping[PanelTableSection, Sequence[Table]]
StudySections = Mapping[StudyTableSection, Sequence[Table]]


@dataclass(frozen=True)
class PanelView:
    """What the page shows of one panel.

    Attributes:
        anchor: id of its section in the page.
        tables, figures: by section.
        unranked: sentences that say why there is no critical-difference diagram, at the k that have none.
    """

    panel: Panel
    anchor: str
    verdicts: list[Verdict]
    tables: Mapping[str, list[PageTable]]
    figures: PanelFigures
    unranked: list[str]


@dataclass(frozen=True)
class VerdictGroup:
    """The panels of one track and protocol, which share a headline."""

    title: str
    headline: str
    selected: bool
    panels: list[PanelView]


def render_page(
    study: Study,
    *,
    grid_name: str,
    title: str,
    description: str,
    panel_tables: Mapping[Panel, PanelSections],
    panel_figures: Mapping[Panel, PanelFigures],
    tables: StudySections,
    files_beside: Sequence[str] = (),
) -> str:
    """The whole page. It depends on its arguments alone: the same results give the same bytes."""
    views = [_view(panel, panel_tables[panel], panel_figures[panel], i) for i, panel in enumerate(study.panels)]
    panels = [view for view in views if not view.panel.of_changed_protocol]
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}
    planned = {cell.id for cell in study.planned}
    return render(
        "report.html.j2",
        title=title or grid_name,
        grid_name=grid_name,
        description=description,
        study=study,
        panels=panels,
        changed_protocol_panels=[view for view in views if view.panel.of_changed_protocol],
        groups=_verdict_groups([view for view in panels if not view.panel.key.ablations]),
        selecting=sorted({panel.key.protocol for panel in study.panels if panel.selects_on_test}),
        selected_note=SELECTED_NOTE,
        support_texts=SUPPORT_TEXTS,
        tables={
            section: [page_table(table) for table in own if table.rows]
            for section, own in tables.items()
            if section != "files"
        },
        source_means=_source_means(study),
        finished=len(planned & finished) if planned else len(finished),
        planned=len(planned) or len(finished | failed),
        finished_ids=finished,
        conditions=conditions(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def _view(panel: Panel, tables: PanelSections, figures: PanelFigures, index: int) -> PanelView:
    return PanelView(
        panel=panel,
        anchor=f"panel-{index}",
        verdicts=[] if panel.key.ablations else verdicts_of(panel),
        tables={
            section: [page_table(table, sortable=section == "pairs") for table in own]
            for section, own in tables.items()
        },
        figures=figures,
        unranked=[] if panel.of_changed_protocol else _unranked(panel),
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


def _verdict_groups(views: Sequence[PanelView]) -> list[VerdictGroup]:
    """The views by track and protocol, each group with a headline of its own."""
    groups: dict[tuple[str, str], list[PanelView]] = {}
    for view in views:
        groups.setdefault((view.panel.key.track, view.panel.key.protocol), []).append(view)
    return [
        VerdictGroup(
            title=f"{stored_track(track).title}, {protocol}" if len(groups) > 1 else "",
            headline=headline([verdict for view in own for verdict in view.verdicts]),
            selected=any(view.panel.selects_on_test for view in own),
            panels=own,
        )
        for (track, protocol), own in groups.items()
    ]


def _source_means(study: Study) -> list[dict[str, Any]]:
    """For each backbone and domain, the source models' mean accuracy on their own tasks, fine-tuned and zero-shot."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for s in study.sources:
        groups.setdefault((s.backbone, s.domain), []).append((s.zero_shot_accuracy, s.fine_tuned_accuracy))
    return [
        {
            "backbone": backbone,
            "domain": domain,
            "count": len(pairs),
            "zero_shot": sum(zero_shot for zero_shot, _ in pairs) / len(pairs),
            "fine_tuned": sum(fine_tuned for _, fine_tuned in pairs) / len(pairs),
            "below": sum(fine_tuned < zero_shot for zero_shot, fine_tuned in pairs),
        }
        for (backbone, domain), pairs in groups.items()
    ]
