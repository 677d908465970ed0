"""Mean accuracy after every epoch of adaptation, on tracks that score a model after every epoch."""

from __future__ import annotations

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import Summary, seed_means, summarize
from orchestrator.report.analysis.study import Study


def last_epoch(study: Study, panel: Panel) -> int:
    """The largest number of epochs of any cell; 0 if no cell was scored after its epochs."""
    return max((len(study.curves.get(row.cell_id, ())) for row in panel.rows), default=0)


def epoch_mean(study: Study, panel: Panel, method: str, k: int, epoch: int) -> Summary | None:
    """For each seed the mean over targets after ``epoch`` (1 is the first), then mean and deviation over seeds.

    A fixed method has the same accuracy after every epoch. ``None`` if no seed has all targets.
    """
    if method in panel.fixed:
        return panel.mean(method, k).accuracy
    tests = panel.tests(k, averaged=True)
    scores = {
        test: {
            seed: study.curves[row.cell_id][epoch - 1]
            for seed, row in panel.rows_by_seed(method, k, test).items()
            if len(study.curves.get(row.cell_id, ())) >= epoch
        }
        for test in tests
    }
    means = seed_means(scores, tests)
    return summarize(list(means.values())) if means else None
