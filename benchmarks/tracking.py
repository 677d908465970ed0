"""Measures tracking: milliseconds for a run that is added, for one that is compared, for a sync with nothing to do.

    python benchmarks/tracking.py                                       # SQLite, 1,000 and 5,000 cells
    MLFLOW_TRACKING_URI=... python benchmarks/tracking.py --sizes 200   # a server or a PostgreSQL

docs/tracking-server.md says which variables name a server and its password. Each size is an experiment of its own,
which is deleted at the end. `wall` is what a user waits, `cpu` is this process's part of it, which hardly depends on
other load.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fanout import make_cells  # noqa: E402
from orchestrator.core.cell import DatasetRef, MethodRef  # noqa: E402
from orchestrator.store import Store  # noqa: E402
from orchestrator.store.results import Evaluation, Manifest, Result, Timings  # noqa: E402
from orchestrator.tracking.location import tracking_location  # noqa: E402
from orchestrator.tracking.runs import Labels  # noqa: E402
from orchestrator.tracking.tracker import SyncReport, Tracker  # noqa: E402

[CELL] = make_cells(1)
METHODS, SHOTS, SEEDS = tuple("abcde"), (1, 2, 4, 8, 16), (1, 2, 3, 4, 5)


def results(count: int) -> list[Result]:
    """``count`` finished cells; the number of datasets follows from it."""
    per_dataset = len(METHODS) * len(SHOTS) * len(SEEDS)
    made = [
        result(method, f"d{number}", shots, seed)
        for number in range(-(-count // per_dataset))
        for method in METHODS
        for shots in SHOTS
        for seed in SEEDS
    ]
    return made[:count]


def result(method: str, dataset: str, shots: int, seed: int) -> Result:
    """One finished cell with the metrics of a real one."""
    target, settings = DatasetRef(dataset, "cccccccc"), (("learning_rate", 0.001), ("top_k", 8))
    where = replace(CELL, dataset=target, evaluate_on=(target,))
    cell = replace(where, shots=shots, method=MethodRef(method, 1, settings), seed=seed)
    manifest = Manifest("0123abc", False, {"python": "3.11"}, "cpu", 1, (), "2026-01-01T00:00:00+00:00")
    evaluation = Evaluation(dataset, 60.0 + shots, 120, 200, 50.0, ((60, 100), (65, 100)), None, None)
    curve = {"train_loss": tuple(1 / (1 + epoch) for epoch in range(10))}
    return Result(cell, (evaluation,), 392, Timings(0.1, 2.0, 0.3), 120.0, 40, manifest, curve, {})


def describe(result: Result) -> Labels:
    return Labels(result.cell.method.name, "Glyphs")


def measure(what: str, cells: int, work: Callable[[], SyncReport]) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    done = work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    runs = done.added + done.kept
    print(
        f"{cells:7,} {what:10} {runs:7,} runs {wall:8.1f} s {1e3 * wall / runs:8.2f} {1e3 * cpu / runs:8.2f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 5000])
    sizes = parser.parse_args().sizes
    with tempfile.TemporaryDirectory(prefix="bolt-") as folder:
        place = tracking_location(Store(folder))
        print(f"tracked in {place.uri.partition(':')[0]}")
        print("  cells what            runs         wall  ms/run  cpu ms/run")
        for size in sizes:
            cells = results(size)
            tracker = Tracker(place, f"benchmark-{os.getpid()}-{size}")
            try:
                measure("added", size, lambda: tracker.sync(cells, describe))  # noqa: B023
                measure("unchanged", size, lambda: tracker.sync(cells, describe))  # noqa: B023
                measure("compared", size, lambda: tracker.sync(cells, describe, verify=True))  # noqa: B023
            finally:
                tracker.remove()


if __name__ == "__main__":
    main()
