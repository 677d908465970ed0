"""The HTML page of a report: one file, made from a study and its tables and figures.

Its first screen has the recommendation, and for each domain a matrix of methods and k beside the costs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bolt.protocol import Protocol
from orchestrator.analysis.comparable import base_protocol
from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.rows import SourceRow
from orchestrator.analysis.verdict import Answer
from orchestrator.report.analysis.panel import Panel, PanelKey
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import SELECTED, SELECTED_NOTE
from orchestrator.report.page.rendering import render
from orchestrator.report.registry import PanelFigures, PanelTables, StudyTables
from orchestrator.report.tables.changes import switches_text
from orchestrator.store.results import Manifest
from orchestrator.tracks import stored_track
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
    """Return the whole page. It depends on its arguments alone: the same results give the same bytes.

    ``inspected``: ids of the cells that have a page of their own in ``../cells``.
    """
    failed = {failure.id for failure in study.failures}
    finished = {result.cell.id for result in study.results}
    planned = {cell.id for cell in study.planned}
    groups = _answer_groups(study, panel_figures)
    sources: dict[tuple[str, str], list[SourceRow]] = defaultdict(list)
    for source in study.sources:
        sources[source.domain, source.backbone].append(source)
    methods = len(set(study.method_names.values()))
    variants = len(study.methods) - methods
    return render(
        "report.html.j2",
        study=study,
        panel_tables=panel_tables,
        panel_figures=panel_figures,
        groups=groups,
        shown_above={answer["figure"].name for _, answers in groups for answer in answers if answer["figure"]},
        methods_text=pluralize(methods, "method") + (f", {pluralize(variants, 'variant')}" if variants else ""),
        method_summaries={title_of(study.method_names[label]): summary for label, summary in study.summaries.items()},
        script_data={"inspected": sorted(inspected)},
        selecting=sorted({panel.key.protocol for panel in study.panels if panel.selects_on_test}),
        selected_note=SELECTED_NOTE,
        tables={section: [table for table in own if table.rows] for section, own in tables.items()},
        sources=sources,
        finished=len(planned & finished) if planned else len(finished),
        planned=len(planned) or len(finished | failed),
        finished_ids=finished,
        conditions=conditions(study),
        last=max((result.manifest.finished_at for result in study.results), default=""),
        files_beside=files_beside,
    )


def _answer_groups(study: Study, figures: Mapping[Panel, PanelFigures]) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return a title and the answers of the first screen for each track, protocol and backbone.

    All domains together come first, then each domain. Changed protocols have tables of their own.
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
    """Return what the page shows of one answer."""
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


def conditions(study: Study) -> list[tuple[str, list[str]]]:
    """Return the name and the values of each condition.

    If there are several values, each has the number of its cells.
    """
    results = study.results
    if not results:
        return []
    cells, manifests = [result.cell for result in results], [result.manifest for result in results]
    protocols = {cell.protocol.name: cell.protocol for cell in cells}
    seeds = {cell.seed for cell in cells if cell.shots or cell.seed} or {cell.seed for cell in cells}
    return [
        ("protocol", [_protocol_text(protocol, protocols) for protocol in protocols.values()]),
        ("seeds of the support", [", ".join(map(str, sorted(seeds)))]),
        ("sources", _counted(Counter(cell.sources_rule.replace("_", " ") for cell in cells))),
        ("backbones", sorted({f"{c.backbone.name} (weights {c.backbone.digest[:12]})" for c in cells})),
        ("datasets", [f"{len({row.test for row in study.rows})} test splits"]),
        ("devices", _counted(Counter(map(_device, manifests)))),
        ("code", _counted(Counter(map(_commit, manifests)))),
        ("packages", [", ".join(sorted(_packages(manifests), key=str.casefold))]),
    ]


def _counted(values: Counter[str]) -> list[str]:
    if len(values) == 1:
        return list(values)
    return [
        f"{value} ({pluralize(f'{count:,}', 'cell')})"
        for value, count in sorted(values.items(), key=lambda v: (-v[1], v[0]))
    ]


def _device(manifest: Manifest) -> str:
    precision = "" if manifest.precision in ("", "float32") else f"{manifest.precision}, "
    return f"{manifest.device} ({precision}threads: {manifest.threads})"


def _commit(manifest: Manifest) -> str:
    changes = ", with uncommitted changes" if manifest.dirty else ""
    return (manifest.commit[:12] or "not under version control") + changes


def _packages(manifests: list[Manifest]) -> list[str]:
    """Return names and versions, with the number of cells if a package had several versions."""
    counts = Counter(pair for manifest in manifests for pair in manifest.versions.items())
    versions = Counter(name for name, _ in counts)
    return [
        f"{name} {version}" + (f" ({pluralize(f'{count:,}', 'cell')})" if versions[name] > 1 else "")
        for (name, version), count in counts.items()
    ]


def _protocol_text(protocol: Protocol, present: Mapping[str, Protocol]) -> str:
    """Return a protocol with its switches; only those that differ if its base protocol is in the report too."""
    base = base_protocol(protocol.name, present)
    switches = f"as {base}, but {switches_text(protocol, present[base])}" if base else switches_text(protocol)
    dagger = f" {SELECTED} selects on the test set" if protocol.selects_on_test else ""
    return f"{protocol.name}: {switches}{dagger}"
