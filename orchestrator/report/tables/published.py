"""The table of measured accuracies beside published ones."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.analysis.rows import Row
from orchestrator.analysis.seed_means import summarize
from orchestrator.report.analysis.study import Study
from orchestrator.report.tables.common import method_entry
from orchestrator.report.tables.table import (
    Entry,
    Table,
    difference,
    measured,
    number,
    with_dagger,
)


def published_table(study: Study) -> Table | None:
    """One row for each measurement that has a published accuracy; ``None`` if there is no such measurement.

    Variants of a method are left out if the method itself was measured: the paper prints no variants.
    """
    groups: dict[tuple[str, str, str, str, str, str, int], list[Row]] = defaultdict(list)
    without_changes = {row.method_name for row in study.rows if row.method == row.method_name}
    for row in study.rows:
        if row.published is not None and (row.method == row.method_name or row.method_name not in without_changes):
            key = (row.test, row.method, row.track, row.protocol, row.domain, row.backbone, row.k)
            groups[key].append(row)
    if not groups:
        return None
    rows = []
    for (*texts, k), own in groups.items():
        published = summarize([row.published for row in own if row.published is not None]).mean
        accuracy = summarize([row.accuracy for row in own])
        numbers = (number(k, "d"), measured(accuracy), number(published), difference(accuracy.mean - published))
        test, method, *others = map(str, texts)
        names = (Entry(test), method_entry(study, method), *map(Entry, others))
        rows.append(with_dagger((*names, *numbers), any(row.selects_on_test for row in own)))
    titles = ("dataset", "method", "track", "protocol", "domain", "backbone")
    return Table(
        name="published",
        title="Measured beside published",
        note="Measured (mean ± sample standard deviation over seeds) beside the published accuracy, in per cent.",
        header=(*titles, "k", "measured", "published", "delta"),
        rows=tuple(rows),
        text_columns=len(titles),
    ).without_constant_columns(2, 6)
