"""The HTML page: one file that needs nothing else, written from a study."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import Any

import jinja2
from markupsafe import Markup

from orchestrator.report.accounts import costs_table, missing_table, published_table, sources_table
from orchestrator.report.build import explorer_table, k_title, pairs_table, ranks_table
from orchestrator.report.figures import FigureFile, inline_svg
from orchestrator.report.formats import to_html
from orchestrator.report.palette import Style
from orchestrator.report.study import TRACK_TITLES, Panel, Study
from orchestrator.report.tables import Table, signed
from orchestrator.report.verdict import BELIEF_WORDS, Verdict, gain_words, headline, verdicts_of

_FILTERED = frozenset({"domain", "backbone", "protocol", "track", "k", "method", "against", "verdict"})
"""Columns that get a choice of their values above their table."""


@dataclass(frozen=True)
class Shown:
    """A table as the page shows it."""

    html: Markup
    note: str
    long: bool


@dataclass(frozen=True)
class PanelFigures:
    """A panel's figures: those about k, and those per dataset."""

    lines: tuple[FigureFile, ...]
    bars: tuple[FigureFile, ...]


@dataclass(frozen=True)
class PanelView:
    """What the page shows of one panel."""

    panel: Panel
    verdicts: list[Verdict]
    main: Shown
    figures: PanelFigures
    ranks: Shown
    pairs: list[Shown]
    anchor: str


def render_page(
    study: Study,
    *,
    grid_name: str,
    title: str,
    description: str,
    main_tables: Mapping[Panel, Table],
    figures: Mapping[Panel, PanelFigures],
    styles: Mapping[str, Style],
    files_beside: Sequence[str] = (),
) -> str:
    """The whole page. It depends on its arguments alone: the same results give the same bytes."""
    folder = files("orchestrator.report")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    environment.filters.update(svg=lambda figure: Markup(inline_svg(figure)), signed=signed, gain=gain_words)
    template = environment.from_string((folder / "page.html.j2").read_text(encoding="utf-8"))
    panels = [
        PanelView(
            panel=panel,
            verdicts=verdicts_of(panel),
            main=shown(main_tables[panel]),
            figures=figures[panel],
            ranks=shown(ranks_table(panel, styles)),
            pairs=[shown(pairs_table(panel, k), element_id=f"pairs-{i}-{k}") for k in panel.ks],
            anchor=f"panel-{i}",
        )
        for i, panel in enumerate(study.panels)
    ]
    published = published_table(study)
    missing = missing_table(study)
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}
    explorers = [(explorer_table(study, track), TRACK_TITLES.get(track, track)) for track in study.tracks]
    return template.render(
        css=Markup((folder / "page.css").read_text(encoding="utf-8")),
        script=Markup((folder / "page.js").read_text(encoding="utf-8")),
        title=title or grid_name,
        grid_name=grid_name,
        description=description,
        study=study,
        panels=panels,
        headline=headline([verdict for entry in panels for verdict in entry.verdicts]),
        beliefs=BELIEF_WORDS,
        styles=styles,
        k_title=k_title,
        explorers=[(shown(table, element_id=f"explorer-{i}"), name) for i, (table, name) in enumerate(explorers)],
        sources=shown(sources_table(study.sources), element_id="sources-table") if study.sources else None,
        source_means=source_means(study),
        costs=shown(costs_table(study.rows, styles), element_id="costs-table") if study.rows else None,
        published=shown(published, element_id="published-table") if published else None,
        missing=shown(missing, element_id="missing-table") if missing.rows else None,
        finished=len({cell.id for cell in study.planned} & finished) if study.planned else len(finished),
        planned=len({cell.id for cell in study.planned}) or len(finished | failed),
        finished_ids=finished,
        measured=how_measured(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def shown(table: Table, *, element_id: str = "") -> Shown:
    """A table for the page; one with an id can be sorted and, where it is long, filtered and searched."""
    filters = tuple(i for i, name in enumerate(table.header) if name in _FILTERED) if len(table.rows) > 12 else ()
    html = to_html(table, sortable=bool(element_id), filters=filters, element_id=element_id)
    return Shown(html, table.note, len(table.rows) > 12)


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
    switches = [
        f"{name}: " + ", ".join(f"{key} = {value}" for key, value in asdict(protocol).items() if key != "name")
        for name, protocol in protocols.items()
    ]
    drawn = sorted({result.cell.seed for result in results if result.cell.shots} or {r.cell.seed for r in results})
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
