"""Results and labels for the tests of tracking."""

from collections.abc import Callable
from typing import Any

from orchestrator.store.results import Result
from orchestrator.tracking.background import BackgroundTracker
from orchestrator.tracking.runs import Labels, TrackedRun
from orchestrator.tracking.tracker import Tracker
from tests.helpers import cells as samples

GRID = "demo"


def describe(result: Result) -> Labels:
    return Labels(result.cell.method.name, "Glyphs", 60.0 if result.cell.method.name == "bolt" else None)


def some_results() -> list[Result]:
    """Two methods, two datasets, two k, three seeds."""
    cell = samples.cell
    return [
        samples.result(cell(seed, method=method, dataset=name, shots=k), accuracy=50.0 + k + seed + len(name))
        for method in ("bolt", "tip_adapter")
        for name in ("digits", "inks")
        for k in (1, 4)
        for seed in (1, 2, 3)
    ]


SUMMARIES = 8 + 2 + 1


def metrics_of(run: TrackedRun) -> dict[tuple[str, int], float]:
    return {(name, step): value for name, value, step in run.metrics}


def in_background(open_tracker: Callable[[], Tracker], results: list[Result], **options: Any) -> BackgroundTracker:
    """Return a writer of these results; none is put yet."""
    stored = {result.cell.id: result for result in results}
    return BackgroundTracker(open_tracker, describe, stored.__getitem__, **options)
