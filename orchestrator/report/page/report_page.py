"""The HTML page: one file that needs nothing else, written from a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from bolt.protocol import Protocol
from orchestrator.report.analysis.critical_difference import critical_difference
from orchestrator.report.analysis.panel import TRACK_TITLES, Panel
from orchestrator.report.analysis.study import Study, base_protocol
from orchestrator.report.analysis.switch_effects import changes
from orchestrator.report.analysis.verdict import BELIEF_WORDS, Verdict, gain_words, headline, verdicts_of
from orchestrator.report.figures.drawing import inline_svg
from orchestrator.report.registry import PanelFigures, PanelTables
from orchestrator.report.styles import Style
from orchestrator.report.tables.formats import to_html
from orchestrator.report.tables.table import Table
from orchestrator.report.text import SELECTED, SELECTED_NOTE, k_title, signed

_FILTERED = frozenset({"domain", "backbone", "protocol", "track", "k", "method", "against", "verdict"})
"""Columns that get a choice of their values above their table."""


_MANY = 10
"""Tables with more columns are printed in smaller letters."""


@dataclass(frozen=True)
class Shown:
    """A table as the page shows it."""

    title: str
    html: Markup
    note: str
    narrow: bool
    many: bool


@dataclass(frozen=True)
class PanelView:
    """What the page shows of one panel; of a single switch's, the leading tables alone."""

    panel: Panel
    verdicts: list[Verdict]
    lead: list[Shown]
    ablations: list[Shown]
    figures: PanelFigures
    ranks: Shown
    pairs: list[Shown]
    anchor: str
    unranked: list[str]


@dataclass(frozen=True)
class Group:
    """The panels of one track and protocol: what one headline may speak about."""

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
    tables: Mapping[Panel, PanelTables],
    common: Mapping[str, Table],
    figures: Mapping[Panel, PanelFigures],
    styles: Mapping[str, Style],
    files_beside: Sequence[str] = (),
) -> str:
    """The whole page. It depends on its arguments alone: the same results give the same bytes."""
    folder = files("orchestrator.report.page") / "templates"
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters.update(svg=lambda figure: Markup(inline_svg(figure)), signed=signed, gain=gain_words)
    template = environment.from_string((folder / "report.html.j2").read_text(encoding="utf-8"))
    views = [_view(panel, tables[panel], figures[panel], i) for i, panel in enumerate(study.panels)]
    panels = [view for view in views if not view.panel.of_switch]
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}

    def table(name: str) -> Shown | None:
        return shown(common[name], element_id=f"{name}-table") if name in common and common[name].rows else None

    return template.render(
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        title=title or grid_name,
        grid_name=grid_name,
        description=description,
        study=study,
        panels=panels,
        switch_panels=[view for view in views if view.panel.of_switch],
        groups=groups_of([view for view in panels if not view.panel.key.ablations]),
        selecting=sorted({panel.key.protocol for panel in study.panels if panel.selects_on_test}),
        selected_note=SELECTED_NOTE,
        beliefs=BELIEF_WORDS,
        styles=styles,
        k_title=k_title,
        explorers=[found for name in common if name.startswith("explorer_") and (found := table(name))],
        effects=table("effects"),
        sources=table("sources"),
        source_means=source_means(study),
        costs=[found for name in common if name.startswith("costs_") and (found := table(name))],
        published=table("published"),
        paper=[found for name in common if name.startswith("paper_") and (found := table(name))],
        short_classes=table("short_classes"),
        missing=table("missing"),
        finished=len({cell.id for cell in study.planned} & finished) if study.planned else len(finished),
        planned=len({cell.id for cell in study.planned}) or len(finished | failed),
        finished_ids=finished,
        measured=how_measured(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def _view(panel: Panel, tables: PanelTables, figures: PanelFigures, index: int) -> PanelView:
    return PanelView(
        panel=panel,
        verdicts=[] if panel.key.ablations else verdicts_of(panel),
        lead=[shown(table) for table in tables.lead],
        ablations=[shown(table) for table in tables.ablations],
        figures=figures,
        ranks=shown(tables.ranks),
        pairs=[shown(table, element_id=f"pairs-{index}-{i}") for i, table in enumerate(tables.pairs)],
        anchor=f"panel-{index}",
        unranked=[] if panel.of_switch else unranked(panel),
    )


def unranked(panel: Panel) -> list[str]:
    """Why there is no critical difference, at the k that have none."""
    found = {k: critical_difference(panel, k) for k in panel.ks}
    reasons: dict[str, list[int]] = {}
    for k, reason in found.items():
        if isinstance(reason, str):
            reasons.setdefault(reason, []).append(k)
    return [
        reason if len(ks) == len(panel.ks) else f"At {', '.join(map(k_title, ks))}: {reason[0].lower()}{reason[1:]}"
        for reason, ks in reasons.items()
    ]


def groups_of(views: Sequence[PanelView]) -> list[Group]:
    """The views by track and protocol, each group with a headline of its own."""
    groups: dict[tuple[str, str], list[PanelView]] = {}
    for view in views:
        groups.setdefault((view.panel.key.track, view.panel.key.protocol), []).append(view)
    several = len(groups) > 1
    return [
        Group(
            title=f"{TRACK_TITLES.get(track, track)}, {protocol}" if several else "",
            headline=headline([verdict for view in own for verdict in view.verdicts]),
            selected=any(view.panel.selects_on_test for view in own),
            panels=own,
        )
        for (track, protocol), own in groups.items()
    ]


def shown(table: Table, *, element_id: str = "") -> Shown:
    """A table for the page; one with an id can be sorted and, where it is long, filtered and searched."""
    filters = tuple(i for i, name in enumerate(table.header) if name in _FILTERED) if len(table.rows) > 12 else ()
    html = to_html(table, sortable=bool(element_id), filters=filters, element_id=element_id)
    return Shown(table.title, html, table.caption, len(table.header) <= 3, len(table.header) > _MANY)


def source_means(study: Study) -> list[dict[str, Any]]:
    """Per backbone and domain, the sources' mean accuracy on their own tasks, fine-tuned and zero-shot."""
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for s in study.sources:
        groups.setdefault((s.backbone, s.domain), []).append((s.zero_shot_accuracy, s.fine_tuned_accuracy))
    return [
        {
            "backbone": backbone,
            "domain": domain,
            "count": len(pairs),
            "zero_shot": sum(zero for zero, _ in pairs) / len(pairs),
            "fine_tuned": sum(tuned for _, tuned in pairs) / len(pairs),
            "below": sum(tuned < zero for zero, tuned in pairs),
        }
        for (backbone, domain), pairs in groups.items()
    ]


def how_measured(study: Study) -> list[tuple[str, list[str]]]:
    """The conditions of the measurement, each value with the number of cells it held for where there are several."""
    results = study.results
    if not results:
        return []

    def counted(values: Counter[str]) -> list[str]:
        if len(values) == 1:
            return list(values)
        return [f"{value} ({count:,} cells)" for value, count in sorted(values.items(), key=lambda v: (-v[1], v[0]))]

    protocols = {result.cell.protocol.name: result.cell.protocol for result in results}
    switches = [_protocol_words(protocol, protocols) for protocol in protocols.values()]
    cells = [result.cell for result in results]
    drawn = sorted({cell.seed for cell in cells if cell.shots or cell.seed} or {cell.seed for cell in cells})
    commits = Counter(
        (r.manifest.commit[:12] or "not under version control") + (", with uncommitted changes" * r.manifest.dirty)
        for r in results
    )
    versions = Counter(
        f"{name} {version}" for result in results for name, version in sorted(result.manifest.versions.items())
    )
    names = Counter(text.rsplit(" ", 1)[0] for text in versions)
    packages = [
        text if names[text.rsplit(" ", 1)[0]] == 1 else f"{text} ({count:,} cells)" for text, count in versions.items()
    ]
    backbones = sorted({f"{r.cell.backbone.name} (weights {r.cell.backbone.digest[:12]})" for r in results})
    return [
        ("protocol", switches),
        ("seeds of the support", [", ".join(map(str, drawn))]),
        ("sources", counted(Counter(r.cell.sources_rule.replace("_", " ") for r in results))),
        ("backbones", backbones),
        ("datasets", [f"{len({row.test for row in study.rows})} test splits"]),
        ("devices", counted(Counter(f"{r.manifest.device} (threads: {r.manifest.threads})" for r in results))),
        ("code", counted(commits)),
        ("packages", [", ".join(sorted(packages, key=str.casefold))]),
    ]


def _protocol_words(protocol: Protocol, present: Mapping[str, Protocol]) -> str:
    """A protocol by all its switches or, where the one that it changes is there too, by those that differ."""
    base = base_protocol(protocol.name, present)
    if base is not None:
        words = f"as {base}, but {changes(present[base], protocol)}"
    else:
        words = ", ".join(f"{key} = {value}" for key, value in asdict(protocol).items() if key != "name")
    return f"{protocol.name}: {words}" + (f" {SELECTED} selects on the test set" if protocol.selects_on_test else "")
