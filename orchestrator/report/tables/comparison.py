"""The tables that every panel has, built from a study."""

from __future__ import annotations

from orchestrator.report.analysis.panel import TRACK_TITLES, Panel
from orchestrator.report.analysis.panel_text import dataset_count, expected_seeds, is_baseline, panel_slug, seeds_words
from orchestrator.report.analysis.rows import Row
from orchestrator.report.analysis.study import Study
from orchestrator.report.styles import Styles
from orchestrator.report.tables.table import (
    Entry,
    Table,
    difference,
    flagged,
    marked,
    marked_columns,
    measured,
    number,
    without_constant_columns,
    word,
)
from orchestrator.report.text import k_title
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize


def method_entry(method: str, styles: Styles) -> Entry:
    """A method's name with its colour."""
    return word(method, colour=styles[method].colour)


def main_table(panel: Panel, styles: Styles) -> Table:
    """Methods x k: mean over the datasets per seed, then mean and deviation over seeds, and the gain over zero-shot."""
    rows = []
    for method in panel.methods:
        entries = [method_entry(method, styles)]
        for k in panel.ks:
            mean = panel.mean(method, k)
            gain = None if method in panel.fixed and is_baseline(panel, method) else mean.gain
            note = "does not depend on the support" if method in panel.fixed else ""
            missing = f"({mean.have}/{mean.of} datasets)"
            points = gain.mean if gain else None
            seeds = expected_seeds(panel, method)
            entries.append(measured(mean.accuracy, gain=points, missing=missing, note=note, seeds=seeds))
        rows.append(entries)
    what = "shifted test set" if panel.key.track == "ood" else "dataset"
    note = (
        f"Mean accuracy in per cent over {dataset_count(panel, what)} per seed, then mean ± sample standard "
        f"deviation over seeds ({seeds_words(panel)}); after it the gain over zero-shot in points. A dash: no seed "
        "has every dataset yet."
    )
    return Table(
        name=f"main_{panel_slug(panel)}",
        title=f"{'Accuracy by method and shots' if any(panel.ks) else 'Mean accuracy by method'}, {panel.title}",
        note=with_notes(note, panel),
        header=("method", *map(k_title, panel.ks)),
        rows=tuple(flagged(row, panel.selects_on_test) for row in marked_columns(rows)) if rows else (),
    )


def with_notes(note: str, panel: Panel) -> str:
    """The note with what else must be read with a panel's numbers: short classes, and images that differ."""
    short: dict[tuple[int, str], Row] = {(row.k, row.dataset): row for row in panel.rows if row.short_classes}
    lines = [
        f"{dataset}: {row.short_classes} of {row.classes} classes have fewer than {k} training images; all were taken."
        for (k, dataset), row in sorted(short.items())
    ]
    if len(lines) > 3:
        lines = [f"{len(lines)} times a class has fewer than k training images (table short_classes); all were taken."]
    if panel.uneven:
        lines.append(f"Scored on other images than the rest: {', '.join(panel.uneven)}; compare gains, not accuracies.")
    return " ".join([note, *lines])


def dataset_table(panel: Panel, k: int, styles: Styles) -> Table:
    """Datasets x methods at one k, closed by the mean over datasets and the average rank."""
    rows = []
    for test in panel.tests(k):
        entries = [
            measured(panel.score(method, k, test), seeds=expected_seeds(panel, method)) for method in panel.methods
        ]
        rows.append((word(test), *marked(entries)))
    mean_entries = []
    for method in panel.methods:
        mean, seeds = panel.mean(method, k), expected_seeds(panel, method)
        mean_entries.append(measured(mean.accuracy, missing=f"({mean.have}/{mean.of})", seeds=seeds))
    ranks, count = panel.ranks(k)
    rank_entries = [number(ranks.get(method)) for method in panel.methods]
    rows.append((word("mean of shifted" if panel.key.track == "ood" else "mean"), *marked(mean_entries)))
    rows.append((word(f"average rank ({pluralize(count, 'dataset')})"), *rank_entries))
    at = f" at k = {k}" if k else ""
    return Table(
        name=f"datasets_{panel_slug(panel)}_k{k}",
        title=f"Accuracy by dataset{at}, {panel.title}",
        note=with_notes(
            f"Accuracy in per cent, mean ± sample standard deviation over seeds ({seeds_words(panel)}).", panel
        ),
        header=("dataset", *panel.methods),
        rows=tuple(flagged(row, panel.selects_on_test) for row in rows),
        closing=2,
    )


def explorer_table(study: Study, track: str) -> Table:
    """Every dataset, backbone and k of a track in one long table, to be filtered and sorted."""
    panels = [panel for panel in study.panels if panel.key.track == track and not panel.key.ablations]
    methods = [method for method in study.methods if any(method in panel.methods for panel in panels)]
    methods.sort(key=lambda m: not any(m in panel.fixed for panel in panels))
    rows = []
    for panel in panels:
        own = [word(panel.key.domain), word(panel.key.backbone), word(panel.key.protocol)]
        for k in panel.ks:
            for test in panel.tests(k):
                scores = [
                    measured(panel.score(method, k, test), seeds=expected_seeds(panel, method)) for method in methods
                ]
                line = (word(test), *own, number(k, "d"), *marked(scores))
                rows.append(flagged(line, panel.selects_on_test))
    note = "Accuracy in per cent, mean ± sample standard deviation over seeds; the pointer over a number shows n."
    header = ("dataset", "domain", "backbone", "protocol", "k", *methods)
    title = f"Every dataset, {TRACK_TITLES.get(track, track)}"
    return without_constant_columns(Table(f"explorer_{slug(track)}", title, note, header, tuple(rows), words=4), 1, 5)


def ranks_table(panel: Panel, styles: Styles) -> Table:
    """Methods x k: average rank over datasets."""
    ranked = [panel.ranks(k) for k in panel.ks]
    rows = [
        (method_entry(method, styles), *(number(ranks.get(method)) for ranks, _ in ranked)) for method in panel.methods
    ]
    counts = list(dict.fromkeys(str(count) for _, count in ranked))
    return Table(
        name=f"ranks_{panel_slug(panel)}",
        title=f"Average rank over datasets, {panel.title}",
        note="1 is best; ties share the mean of their ranks; by mean accuracy over seeds, over the "
        f"{pluralize(' / '.join(counts), 'dataset')} that all ranked methods have. A dash: datasets are missing, so "
        "it has no rank.",
        header=("method", *map(k_title, panel.ks)),
        rows=tuple(flagged(row, panel.selects_on_test) for row in rows),
    )


def probability(p: float | None, why_not: str = "") -> Entry:
    """An entry of one p; none is so small that it would print as zero."""
    return Entry("< 0.0001", value=p) if p is not None and p < 0.0001 else number(p, ".4f", note=why_not)


def pairs_table(panel: Panel, k: int) -> Table:
    """Every pair of methods at one k: difference, wins, ties and losses over datasets, test."""
    ranks = {method: place for place, (method, _) in enumerate(panel.ranking(k))}
    last = len(ranks)
    rows = []
    pairs = [p if ranks.get(p.first, last) <= ranks.get(p.second, last) else p.turned() for p in panel.pairs(k)]
    for pair in sorted(pairs, key=lambda p: (ranks.get(p.first, last), ranks.get(p.second, last))):
        verdict = "significant" if pair.claimed else "not significant" if pair.p is not None else "not tested"
        rows.append(
            (
                word(pair.first),
                word(pair.second),
                word(verdict, note=pair.why_not),
                difference(pair.difference),
                number(pair.datasets, "d"),
                number(pair.wins, "d"),
                number(pair.ties, "d"),
                number(pair.losses, "d"),
                probability(pair.p, pair.why_not),
                probability(pair.p_holm, pair.why_not),
            )
        )
    at = f" at k = {k}" if k else ""
    reasons = sorted({pair.why_not for pair in pairs if pair.why_not})
    return Table(
        name=f"pairs_{panel_slug(panel)}_k{k}",
        title=f"Pairs of methods{at}, {panel.title}",
        note="Wins, ties and losses of the first method over datasets; two-sided Wilcoxon signed-rank test over "
        "datasets on means over seeds, Holm-corrected over the tested pairs of this table."
        + (f" Not tested: {'; '.join(reasons)}." if reasons else ""),
        header=("method", "against", "verdict", "points", "datasets", "wins", "ties", "losses", "p", "p (Holm)"),
        rows=tuple(flagged(row, panel.selects_on_test) for row in rows),
        words=3,
    )
