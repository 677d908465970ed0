"""The first screen of a report: the recommendation, and for each domain a matrix of methods and k beside the costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.analysis.comparison import MethodScore
from orchestrator.analysis.verdict import Answer, Verdict
from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.figures.drawing import FigureFile
from orchestrator.report.notation import k_title, signed
from orchestrator.report.registry import PanelFigures
from orchestrator.tracks import stored_track
from orchestrator.util.units import pluralize


@dataclass(frozen=True)
class MatrixCell:
    """One method at one k.

    Attributes:
        mean: mean accuracy in per cent.
        difference: lead over the first method in points; empty for the first method.
        interval: 95 % interval of the difference; empty if the data are too few for one.
        in_best_set: whether the method may be the best at this k.
        note: what the number is over, if it is fewer than the comparison's datasets or seeds.
    """

    mean: str
    difference: str
    interval: str
    in_best_set: bool
    recommended: bool
    note: str = ""


@dataclass(frozen=True)
class MatrixColumn:
    """One k: its title, what the comparison is over, and its statement."""

    title: str
    over: str
    statement: str


@dataclass(frozen=True)
class MatrixRow:
    """One method with its cell at every k; ``None`` where it was not measured."""

    label: str
    name: str
    colour: str
    summary: str
    cells: tuple[MatrixCell | None, ...]


@dataclass(frozen=True)
class AnswerView:
    """What the page shows of one answer. ``figure`` is accuracy against cost, ``link`` the slug of its panel."""

    title: str
    sentence: str
    columns: tuple[MatrixColumn, ...]
    rows: tuple[MatrixRow, ...]
    figure: FigureFile | None
    link: str
    selects_on_test: bool


@dataclass(frozen=True)
class AnswerGroup:
    """The answers of one track, protocol and backbone: all domains together first, then each domain."""

    title: str
    answers: tuple[AnswerView, ...]


def answer_groups(study: Study, figures: Mapping[Panel, PanelFigures]) -> list[AnswerGroup]:
    """What the first screen shows, in the order of the panels. Changed protocols have tables of their own."""
    panels = {
        (panel.key.track, panel.key.protocol, panel.key.backbone, panel.key.domain): panel
        for panel in study.main_panels
        if not panel.key.ablations
    }
    places = dict.fromkeys(place[:3] for place in panels)
    several = [len({place[i] for place in places}) > 1 for i in range(3)]
    groups = []
    for track, protocol, backbone in places:
        own = [a for a in study.answers if (a.track, a.protocol, a.backbone) == (track, protocol, backbone)]
        own.sort(key=lambda answer: answer.domain != "")
        views = [_view(study, answer, panels, figures) for answer in own if answer.verdicts]
        title = " · ".join(
            text for text, shown in zip((stored_track(track).title, protocol, backbone), several, strict=True) if shown
        )
        if views:
            groups.append(AnswerGroup(title, tuple(views)))
    return groups


def _view(
    study: Study,
    answer: Answer,
    panels: Mapping[tuple[str, str, str, str], Panel],
    figures: Mapping[Panel, PanelFigures],
) -> AnswerView:
    place = (answer.track, answer.protocol, answer.backbone)
    own = [panel for key, panel in panels.items() if key[:3] == place and answer.domain in ("", key[3])]
    panel = own[0] if answer.domain and own else None
    digits = min((panel.digits for panel in own), default=2)
    costs = figures[panel]["costs"] if panel is not None and not answer.dataset else []
    title = answer.dataset or answer.domain.replace("_", " ") or "all domains together"
    return AnswerView(
        title=title[:1].upper() + title[1:],
        sentence=_capitalised(answer.recommendation(study.display_names)),
        columns=tuple(_column(verdict, study.display_names) for verdict in answer.verdicts),
        rows=_rows(study, answer, digits),
        figure=costs[0] if costs else None,
        link=panel.key.slug if panel is not None else "",
        selects_on_test=any(panel.selects_on_test for panel in own),
    )


def _column(verdict: Verdict, display_names: Mapping[str, str]) -> MatrixColumn:
    comparison = verdict.comparison
    over = pluralize(comparison.n, "dataset" if comparison.scope == "datasets" else "seed")
    return MatrixColumn(k_title(verdict.k), over, verdict.statement(display_names))


def _rows(study: Study, answer: Answer, digits: int) -> tuple[MatrixRow, ...]:
    """A row for each method, in the order of the largest k: methods that may be the best first, then by mean."""
    order = dict.fromkeys(score.method for v in reversed(answer.verdicts) for score in v.comparison.methods)
    scores = [{score.method: score for score in verdict.comparison.methods} for verdict in answer.verdicts]
    return tuple(
        MatrixRow(
            label=method,
            name=study.display_names.get(method, method),
            colour=study.styles[method].colour,
            summary=study.summaries.get(method, ""),
            cells=tuple(
                _cell(own[method], verdict, digits) if method in own else None
                for own, verdict in zip(scores, answer.verdicts, strict=True)
            ),
        )
        for method in order
    )


def _cell(score: MethodScore, verdict: Verdict, digits: int) -> MatrixCell:
    noun = "datasets" if verdict.comparison.scope == "datasets" else "seeds"
    fewer = score.n < verdict.comparison.n
    return MatrixCell(
        mean=f"{score.mean:.{digits}f}",
        difference="" if score.difference is None else signed(score.difference, digits),
        interval="" if score.interval is None else " to ".join(signed(end, digits) for end in score.interval),
        in_best_set=score.in_best_set,
        recommended=score.method == verdict.recommended,
        note=f"{score.n} of {verdict.comparison.n} {noun}" if fewer else "",
    )


def _capitalised(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}."
