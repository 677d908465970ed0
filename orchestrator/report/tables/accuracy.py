"""Accuracy of every method: by k, by dataset, and on every dataset of a track in one long table."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.panel_text import dataset_count, seeds_text
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import at_k, k_title
from orchestrator.report.tables.common import method_entry, with_warnings
from orchestrator.report.tables.table import (
    Table,
    highlighted,
    highlighted_columns,
    measured,
    number,
    text_entry,
    with_dagger,
    without_constant_columns,
)
from orchestrator.tracks import stored_track
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize


def main_table(study: Study, panel: Panel) -> Table:
    """Methods x k: for each seed the mean over datasets, then mean and deviation over seeds; gain over zero-shot."""
    rows = []
    for method in panel.methods:
        entries = [method_entry(study, method)]
        fixed = method in panel.fixed
        for k in panel.ks:
            mean = panel.mean(method, k)
            gain = None if fixed and panel.is_zero_shot(method) else mean.gain
            entries.append(
                measured(
                    mean.accuracy,
                    gain=gain.mean if gain else None,
                    missing=f"({mean.available}/{mean.expected} datasets)",
                    tooltip="does not depend on the support" if fixed else "",
                    seeds=panel.expected_seeds(method),
                )
            )
        rows.append(entries)
    note = (
        f"Mean accuracy in per cent over {dataset_count(panel, _averaged(panel))} per seed, then mean ± sample "
        f"standard deviation over seeds ({seeds_text(panel)}); after it the gain over zero-shot in points. A dash: no "
        "seed has every dataset yet."
    )
    return Table(
        name=f"main_{panel.key.slug}",
        title=f"{'Accuracy by method and shots' if any(panel.ks) else 'Mean accuracy by method'}, {panel.title}",
        note=with_warnings(note, panel),
        header=("method", *map(k_title, panel.ks)),
        rows=tuple(with_dagger(row, panel.selects_on_test) for row in highlighted_columns(rows)),
    )


def _averaged(panel: Panel) -> str:
    return "dataset" if panel.track.averages_target else "shifted test set"


def dataset_table(study: Study, panel: Panel, k: int) -> Table:
    """Datasets x methods at one k; the last two rows are the mean over datasets and the average rank."""
    rows = []
    for test in panel.tests(k):
        entries = [measured(panel.score(m, k, test), seeds=panel.expected_seeds(m)) for m in panel.methods]
        rows.append((text_entry(test), *highlighted(entries)))
    means = []
    for method in panel.methods:
        mean, seeds = panel.mean(method, k), panel.expected_seeds(method)
        means.append(measured(mean.accuracy, missing=f"({mean.available}/{mean.expected})", seeds=seeds))
    ranks, count = panel.ranks(k)
    rows.append((text_entry("mean" if panel.track.averages_target else "mean of shifted"), *highlighted(means)))
    rows.append(
        (text_entry(f"average rank ({pluralize(count, 'dataset')})"), *(number(ranks.get(m)) for m in panel.methods))
    )
    note = f"Accuracy in per cent, mean ± sample standard deviation over seeds ({seeds_text(panel)})."
    return Table(
        name=f"datasets_{panel.key.slug}_k{k}",
        title=f"Accuracy by dataset{at_k(k)}, {panel.title}",
        note=with_warnings(note, panel),
        header=("dataset", *panel.methods),
        rows=tuple(with_dagger(row, panel.selects_on_test) for row in rows),
        summary_rows=2,
    )


def explorer_table(study: Study, track: str) -> Table:
    """Every dataset, backbone, protocol and k of a track in one long table, to filter and sort."""
    panels = [panel for panel in study.panels if panel.key.track == track and not panel.key.ablations]
    methods = [method for method in study.methods if any(method in panel.methods for panel in panels)]
    methods.sort(key=lambda m: not any(m in panel.fixed for panel in panels))
    rows = []
    for panel in panels:
        key = panel.key
        for k in panel.ks:
            for test in panel.tests(k):
                scores = [measured(panel.score(m, k, test), seeds=panel.expected_seeds(m)) for m in methods]
                axes = map(text_entry, (test, key.domain, key.backbone, key.protocol))
                rows.append(with_dagger((*axes, number(k, "d"), *highlighted(scores)), panel.selects_on_test))
    table = Table(
        name=f"explorer_{slug(track)}",
        title=f"Every dataset, {stored_track(track).title}",
        note="Accuracy in per cent, mean ± sample standard deviation over seeds; the pointer over a number shows n.",
        header=("dataset", "domain", "backbone", "protocol", "k", *methods),
        rows=tuple(rows),
        text_columns=4,
    )
    return without_constant_columns(table, 1, 5)
