"""The ``meta`` track: accuracy on the targets' test splits after every epoch of adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.tables.comparison import (
    Styles,
    dataset_count,
    expected_seeds,
    method_entry,
    panel_slug,
    seeds_words,
)
from orchestrator.report.tables.table import Table, flagged, marked_columns, measured

Curves = Mapping[str, Sequence[float]]
"""By cell id, the accuracy after each epoch, epoch 1 first."""

_SHOWN = (1, 2, 5, 10, 20)


def longest(panel: Panel, curves: Curves) -> int:
    """The last epoch of any cell; 0 where no cell has a curve."""
    return max((len(curves.get(row.cell_id, ())) for row in panel.rows), default=0)


def epoch_mean(panel: Panel, curves: Curves, method: str, k: int, epoch: int) -> Summary | None:
    """Per seed the mean over targets after ``epoch``, then mean and deviation over seeds.

    A method that draws no support has its one accuracy at every epoch; another without a curve has none at any.
    """
    if method in panel.fixed:
        return panel.mean(method, k).accuracy
    tests = panel.tests(k, averaged=True)
    scores = {
        test: {
            seed: curves[row.cell_id][epoch - 1]
            for seed, row in panel.seed_rows(method, k, test).items()
            if len(curves.get(row.cell_id, ())) >= epoch
        }
        for test in tests
    }
    means = seed_means(scores, tests)
    return summarize(list(means.values())) if means else None


def epochs_table(panel: Panel, curves: Curves, k: int, styles: Styles) -> Table | None:
    """Methods x epochs 1, 2, 5, 10, 20 and the last; ``None`` where no cell has a curve."""
    last = longest(panel, curves)
    if not last:
        return None
    epochs = sorted({epoch for epoch in _SHOWN if epoch <= last} | {last})
    rows = [
        [
            method_entry(method, styles),
            *(
                measured(epoch_mean(panel, curves, method, k, epoch), seeds=expected_seeds(panel, method))
                for epoch in epochs
            ),
        ]
        for method in panel.methods
    ]
    note = (
        f"Accuracy in per cent on the targets' test splits, mean over {dataset_count(panel, 'target')} per seed, "
        f"then mean ± sample standard deviation over seeds ({seeds_words(panel)}). A dash: the method has no epochs, "
        "fewer of them, or no seed with every target."
    )
    return Table(
        name=f"epochs_{panel_slug(panel)}_k{k}",
        title=f"Accuracy after each epoch{f' at k = {k}' if k else ''}, {panel.title}",
        note=note,
        header=("method", *(f"epoch {epoch}" for epoch in epochs)),
        rows=tuple(flagged(row, panel.selects_on_test) for row in marked_columns(rows)),
    )
