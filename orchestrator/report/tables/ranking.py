"""Methods compared with each other: average ranks over datasets, and every pair of methods with its test."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.study import Study
from orchestrator.report.notation import k_title
from orchestrator.report.tables.common import method_entry, panel_table
from orchestrator.report.tables.table import Entry, Table, difference, number
from orchestrator.util.units import pluralize


def ranks_table(study: Study, panel: Panel) -> Table:
    """Methods x k: average rank over datasets."""
    ranks = [panel.ranks(k) for k in panel.ks]
    rows = [
        (method_entry(study, method), *(number(by_method.get(method)) for by_method, _ in ranks))
        for method in panel.methods
    ]
    counts = dict.fromkeys(str(count) for _, count in ranks)
    note = (
        "1 is best; ties share the mean of their ranks; by mean accuracy over seeds, over the "
        f"{pluralize(' / '.join(counts), 'dataset')} that all ranked methods have. A dash: datasets are missing, so "
        "it has no rank."
    )
    header = ("method", *map(k_title, panel.ks))
    return panel_table(panel, "ranks", "Average rank over datasets", note, header, rows)


def pairs_table(study: Study, panel: Panel, k: int) -> Table:
    """Every pair of methods at one k: difference, wins, ties and losses over datasets, and p of the test."""
    order = {method: place for place, (method, _) in enumerate(panel.ranking(k))}
    last = len(order)
    pairs = [p if order.get(p.first, last) <= order.get(p.second, last) else p.reversed() for p in panel.pairs(k)]
    pairs.sort(key=lambda p: (order.get(p.first, last), order.get(p.second, last)))
    rows = []
    for pair in pairs:
        verdict = "significant" if pair.significant else "not significant" if pair.p is not None else "not tested"
        counts = (pair.datasets, pair.wins, pair.ties, pair.losses)
        rows.append(
            [
                Entry(pair.first),
                Entry(pair.second),
                Entry(verdict, tooltip=pair.reason_untested),
                difference(pair.difference),
                *(number(count, "d") for count in counts),
                _probability(pair.p, pair.reason_untested),
                _probability(pair.p_holm, pair.reason_untested),
            ]
        )
    reasons = sorted({pair.reason_untested for pair in pairs if pair.reason_untested})
    note = (
        "Wins, ties and losses of the first method over datasets; two-sided Wilcoxon signed-rank test over "
        "datasets on means over seeds, Holm-corrected over the tested pairs of this table."
        + (f" Not tested: {'; '.join(reasons)}." if reasons else "")
    )
    header = ("method", "against", "verdict", "points", "datasets", "wins", "ties", "losses", "p", "p (Holm)")
    return panel_table(panel, "pairs", "Pairs of methods", note, header, rows, k=k, text_columns=3)


def _probability(p: float | None, reason_untested: str) -> Entry:
    """An entry of one p, which never prints as zero."""
    if p is not None and p < 0.0001:
        return Entry("< 0.0001", value=p)
    return number(p, ".4f", tooltip=reason_untested)
