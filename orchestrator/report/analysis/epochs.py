"""Accuracy after every epoch of adaptation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize

Curves = Mapping[str, Sequence[float]]
"""By cell id, the accuracy after each epoch, epoch 1 first."""


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
