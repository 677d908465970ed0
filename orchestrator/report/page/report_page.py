"""The HTML page of a report: one file, made from a grid's results, tables and figures.

Its first screen has the recommendation, and for each domain a matrix of methods and k beside the costs.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bolt.protocol import Protocol
from orchestrator.analysis.comparable import base_protocol
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.report.analysis import ComparisonGroup, GridResults
from orchestrator.report.page.rendering import render
from orchestrator.report.registry import Figures, Tables
from orchestrator.report.styles import SELECTED, SELECTED_NOTE
from orchestrator.report.tables.changes import switches_text
from orchestrator.store.results import Manifest
from orchestrator.util.units import pluralize


def render_page(
    grid: GridResults,
    tables: Mapping[ComparisonGroup | None, Tables],
    figures: Mapping[ComparisonGroup, Figures],
    *,
    files_beside: Sequence[str] = (),
    inspected: Collection[str] = (),
) -> str:
    """Return the whole page. It depends on its arguments alone: the same results give the same bytes.

    ``inspected``: ids of the cells that have a page in ``../cells``.
    """
    planned = {cell.id for cell in grid.planned}
    verdict_groups, measured_under = _verdict_groups(grid, figures), conditions(grid)
    methods = len(set(grid.method_names.values()))
    variants = len(grid.methods) - methods
    return render(
        "report.html.j2",
        grid=grid,
        group_tables=tables,
        group_figures=figures,
        verdict_groups=verdict_groups,
        shown_above={series["figure"].name for _, views in verdict_groups for series in views if series["figure"]},
        conditions=measured_under,
        methods_text=pluralize(methods, "method") + (f", {pluralize(variants, 'variant')}" if variants else ""),
        script_data={"inspected": sorted(inspected)},
        selecting=sorted({group.place.protocol for group in grid.groups if group.selects_on_test}),
        selected_note=SELECTED_NOTE,
        tables={section: [table for table in own if table.rows] for section, own in tables[None].items()},
        finished=len(planned & grid.finished) if planned else len(grid.finished),
        planned=len(planned) or len(grid.finished | grid.failed),
        last=max((result.manifest.finished_at for result in grid.results), default=""),
        files_beside=files_beside,
    )


def _verdict_groups(
    grid: GridResults, figures: Mapping[ComparisonGroup, Figures]
) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the title and the verdicts of each track, protocol and backbone, for the first screen of the page.

    All domains together come first, then each domain. Changed protocols are left out: a table shows their effects.
    """
    groups = [group for group in grid.main_groups if not group.ablations]
    places = {group.place[:3]: group.track.title for group in groups}
    several = [len(set(values)) > 1 for values in zip(*places, strict=True)]
    verdict_groups = []
    for place, track_title in places.items():
        own = [series for series in grid.shown_verdicts if series.place[:3] == place and series.verdicts]
        own.sort(key=lambda series: series.place.domain != "")
        title = " · ".join(text for text, shown in zip((track_title, *place[1:]), several, strict=True) if shown)
        if own:
            verdict_groups.append((_capitalised(title), [_view(grid, series, groups, figures) for series in own]))
    return verdict_groups


def _view(
    grid: GridResults,
    series: VerdictSeries,
    groups: Sequence[ComparisonGroup],
    figures: Mapping[ComparisonGroup, Figures],
) -> dict[str, Any]:
    """Return what the page shows of one series."""
    own = [group for group in groups if series.is_about(group.place)]
    group = own[0] if series.place.domain else None  # all domains together have no group
    costs = figures[group]["costs"] if group is not None and not series.dataset else []
    scores = [{score.method: score for score in verdict.methods} for verdict in series.verdicts]
    return {
        "title": series.dataset or _capitalised(series.place.domain.replace("_", " ") or "all domains together"),
        "metric": own[0].mean_of,
        "unit": own[0].metric.in_per_cent,
        "sentence": f"{_capitalised(series.recommendation(grid.display_names))}.",
        # the columns of the matrix, each with the score of every method that was measured at its k
        "verdicts": list(zip(series.verdicts, scores, strict=True)),
        # the lines of the matrix: first the methods at the largest k, the best set before the other methods; then the
        # methods that were measured only at smaller k
        "methods": list(dict.fromkeys(method for own_scores in reversed(scores) for method in own_scores)),
        "digits": min(group.digits for group in own),
        "figure": costs[0] if costs else None,
        "link": group.slug if group is not None else "",
        "selects_on_test": any(group.selects_on_test for group in own),
    }


def _capitalised(sentence: str) -> str:
    return f"{sentence[:1].upper()}{sentence[1:]}"


def conditions(grid: GridResults) -> list[tuple[str, list[str]]]:
    """Return under which conditions the results were measured: the name of each condition, and its values.

    If cells differ in their sources, device, code or packages, each value comes with the number of its cells.
    """

    def counted(values: Iterable[str]) -> list[str]:
        """Return the values, the most frequent first; if there are several, each with the number of its cells."""
        counts = sorted(Counter(values).items(), key=lambda item: (-item[1], item[0]))
        several = len(counts) > 1
        return [f"{value} ({pluralize(f'{count:,}', 'cell')})" if several else value for value, count in counts]

    if not (results := grid.results):
        return []
    cells, manifests = [result.cell for result in results], [result.manifest for result in results]
    protocols = {cell.protocol.name: cell.protocol for cell in cells}
    seeds = {cell.seed for cell in cells if cell.shots or cell.seed} or {cell.seed for cell in cells}
    selecting = {cell.protocol.name for cell in cells if cell.selects_on_test}
    return [
        ("protocol", [_protocol_text(protocol, protocols, selecting) for protocol in protocols.values()]),
        ("seeds of the support", [", ".join(map(str, sorted(seeds)))]),
        ("sources", counted(cell.sources_rule.replace("_", " ") for cell in cells)),
        ("backbones", sorted({f"{c.backbone.name} (weights {c.backbone.digest[:12]})" for c in cells})),
        ("datasets", [pluralize(grid.test_splits, "test split")]),
        ("devices", counted(map(_device, manifests))),
        ("code", counted(map(_commit, manifests))),
        ("packages", [", ".join(sorted(_packages(manifests), key=str.casefold))]),
    ]


def _device(manifest: Manifest) -> str:
    precision = "" if manifest.precision in ("", "float32") else f"{manifest.precision}, "
    return f"{manifest.device} ({precision}threads: {manifest.threads})"


def _commit(manifest: Manifest) -> str:
    changes = ", with uncommitted changes" if manifest.dirty else ""
    return (manifest.commit[:12] or "not under version control") + changes


def _packages(manifests: list[Manifest]) -> list[str]:
    """List the packages with their versions. If a package has several, each version comes with its number of cells."""
    counts = Counter(pair for manifest in manifests for pair in manifest.versions.items())
    versions = Counter(name for name, _ in counts)
    return [
        f"{name} {version}" + (f" ({pluralize(f'{count:,}', 'cell')})" if versions[name] > 1 else "")
        for (name, version), count in counts.items()
    ]


def _protocol_text(protocol: Protocol, present: Mapping[str, Protocol], selecting: Collection[str]) -> str:
    """Return a protocol with its switches, or with the changed ones only if the report has its base protocol too."""
    base = base_protocol(protocol.name, present)
    switches = f"as {base}, but {switches_text(protocol, present[base])}" if base else switches_text(protocol)
    dagger = f" {SELECTED} selects on the test set" if protocol.name in selecting else ""
    return f"{protocol.name}: {switches}{dagger}"
