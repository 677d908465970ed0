"""Which methods may be the best by the paper's own printed few-shot accuracies."""

from __future__ import annotations

from orchestrator.analysis.best_set import best_set
from orchestrator.analysis.display_names import title_of
from orchestrator.analysis.recommendation import Verdict
from orchestrator.analysis.verdict import Answer
from orchestrator.report.paper.published import AVERAGE, published_rows
from orchestrator.report.tables.table import Entry, Table, number

_TRACK = "fewshot"


def published_answers() -> tuple[Answer, ...]:
    """Return one answer for each domain and backbone of the few-shot tables, by the rule for measured accuracies.

    Printed accuracies have no seeds, and the tables print no costs.
    """
    places: dict[tuple[str, str], dict[int, dict[str, dict[tuple[str, int], float]]]] = {}
    for row in published_rows():
        if row.track == _TRACK and row.dataset != AVERAGE:
            by_k = places.setdefault((row.domain, row.backbone), {}).setdefault(row.shots, {})
            by_k.setdefault(row.method, {})[row.dataset, 0] = row.accuracy
    return tuple(
        Answer(
            _TRACK,
            "published",
            domain,
            backbone,
            tuple(Verdict(k, best_set(scores, without_seeds=tuple(scores)), {}) for k, scores in sorted(by_k.items())),
        )
        for (domain, backbone), by_k in places.items()
    )


def published_verdict_table() -> Table:
    """Make one row for each domain, backbone and k: the methods that may be the best, and over how many datasets."""
    rows = []
    for answer in published_answers():
        place = (Entry(answer.domain.replace("_", " ")), Entry(answer.backbone))
        for verdict in answer.verdicts:
            names = {score.method: title_of(score.method) for score in verdict.comparison.methods}
            numbers = (number(verdict.k, "d"), number(verdict.comparison.n, "d"))
            rows.append((*place, Entry(verdict.statement(names)), *numbers))
    return Table(
        name="paper_verdict",
        title="Which methods may be the best by the printed few-shot accuracies",
        note="At 95 per cent, over the datasets of the domain, by the rule that measured accuracies have too. Printed "
        "accuracies have one seed each.",
        header=("domain", "backbone", "verdict", "k", "datasets"),
        rows=tuple(rows),
        text_columns=3,
    )
