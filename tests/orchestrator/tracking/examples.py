"""Results and labels for the tests of tracking."""

from orchestrator.store.results import Result
from orchestrator.tracking.runs import Labels, TrackedRun
from tests.helpers import cells as samples

GRID = "demo"


def describe(result: Result) -> Labels:
    return Labels(result.cell.method.name, "Glyphs", 60.0 if result.cell.method.name == "bolt" else None)


def some_results() -> list[Result]:
    """Two methods, two datasets, two k, three seeds."""
    return [
        samples.result(
            samples.cell(seed, method=method, dataset=dataset, shots=shots), accuracy=50.0 + shots + seed + len(dataset)
        )
        for method in ("bolt", "tip_adapter")
        for dataset in ("digits", "inks")
        for shots in (1, 4)
        for seed in (1, 2, 3)
    ]


SUMMARIES = 8 + 2 + 1


def metrics_of(run: TrackedRun) -> dict[tuple[str, int], float]:
    return {(name, step): value for name, value, step in run.metrics}
