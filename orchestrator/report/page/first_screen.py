"""The first screen of a report: the recommendation, and for each domain a matrix of methods and k beside the costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.analysis.verdict import Answer
from orchestrator.report.analysis.panel import Panel, PanelKey
from orchestrator.report.analysis.study import Study
from orchestrator.report.registry import PanelFigures
from orchestrator.tracks import stored_track


def answer_groups(study: Study, figures: Mapping[Panel, PanelFigures]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The answers of each track, protocol and backbone with a title: all domains together first, then each domain.

    The order is that of the panels. Changed protocols have tables of their own.
    """
    panels = [panel for panel in study.main_panels if not panel.key.ablations]
    places = list(dict.fromkeys(_place(panel.key) for panel in panels))
    several = [len(set(values)) > 1 for values in zip(*places, strict=True)]
    groups = []
    for place in places:
        own = [answer for answer in study.answers if _place(answer) == place and answer.verdicts]
        own.sort(key=lambda answer: answer.domain != "")
        titles = (stored_track(place[0]).title, *place[1:])
        title = " · ".join(text for text, shown in zip(titles, several, strict=True) if shown)
        if own:
            groups.append((title, [_view(study, answer, panels, figures) for answer in own]))
    return groups


def _place(of: PanelKey | Answer) -> tuple[str, str, str]:
    return of.track, of.protocol, of.backbone


def _view(
    study: Study, answer: Answer, panels: Sequence[Panel], figures: Mapping[Panel, PanelFigures]
) -> dict[str, Any]:
    """What the page shows of one answer."""
    own = [p for p in panels if _place(p.key) == _place(answer) and answer.domain in ("", p.key.domain)]
    panel = own[0] if answer.domain and own else None  # none for all domains together
    costs = figures[panel]["costs"] if panel is not None and not answer.dataset else []
    title = answer.dataset or answer.domain.replace("_", " ") or "all domains together"
    scores = [{score.method: score for score in verdict.comparison.methods} for verdict in answer.verdicts]
    return {
        "title": _capitalised(title),
        "sentence": f"{_capitalised(answer.recommendation(study.display_names))}.",
        # the columns of the matrix, each with the score of every method that was measured at its k
        "verdicts": list(zip(answer.verdicts, scores, strict=True)),
        # its lines, in the order of the largest k: methods that may be the best first, then by mean
        "methods": list(dict.fromkeys(method for own_scores in reversed(scores) for method in own_scores)),
        "digits": min((panel.digits for panel in own), default=2),
        "figure": costs[0] if costs else None,
        "link": panel.key.slug if panel is not None else "",
        "selects_on_test": any(panel.selects_on_test for panel in own),
    }


def _capitalised(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"
