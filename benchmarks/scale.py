"""Whole sessions of 1,000, 10,000 and 50,000 cells (a lab's yearly sweep) of a method that does nothing.

    python benchmarks/scale.py                                      # 40 minutes on two cores, 30 of them 50,000
    python benchmarks/scale.py --sizes 1000

A real grid file is expanded over the catalog's image datasets and planned against a real store, and every cell writes
one real result. Each size has a process of its own:

    plan      expand and plan the grid with an empty store
    fanout    run half of the cells, with Tune and the store only, and stop; `held` is how many trials Tune then held
    resume    plan the open cells, reading half of the results, and run them as a session does: with the terminal view,
              the status file, and every cell tracked in MLflow (SQLite) in the background

For comparison the same process measures other ways with at most 1,000 cells: `grid_ms`, a bare tune.grid_search, whose
time is quadratic in the number of cells; `pool_ms`, a ray.util.ActorPool without trials, retries or resume, about the
least for Ray; `plain_ms`, a run logged with MLflow's plain client. `start_s` is the time until the first cell of the
resume has ended; `ms` are of each further cell.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.common import command, seconds
from benchmarks.fanout import WORKERS, grid, on_tune, pool
from bolt.methods.base import register
from orchestrator.catalog import Catalog, load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent
from orchestrator.core.settings import RunSettings
from orchestrator.grid import Grid, load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.store import Store
from orchestrator.tracking.grid_runs import GridRuns

COMPARED, PLAIN_RUNS = 1000, 20
"""How many cells Ray's bare ways run at most, and how many runs MLflow's plain client logs."""
DOMAINS = ("general", "remote_sensing")
VARIANTS, LEAST_SEEDS = 8, 3
"""Variants of the method, and seeds, as in the few-shot grid. Larger grids have more seeds."""

Measured = dict[str, float]


@dataclass(frozen=True)
class Settings:
    """The settings of the method that does nothing."""

    top_k: int = 12
    epochs: int = 20
    learning_rate: float = 1e-3


def load(size: int, folder: Path) -> tuple[Grid, Catalog]:
    """Load a grid of exactly ``size`` cells of the method that does nothing."""

    def adapt(task: Any, settings: Settings) -> Any:
        raise AssertionError("the runner of this benchmark makes no task")

    needs = {"uses_sources": True, "uses_mean_task_vector": True, "changes_tower": True}
    register("nothing", "Nothing", "", Settings, adapt, **needs)
    catalog = load_catalog()
    targets = sum(entry.has_training_images and entry.domain in DOMAINS for entry in catalog.datasets.values())
    seeds = max(LEAST_SEEDS, -(-size // (3 * targets * 5 * VARIANTS)))
    block = {
        "track": "fewshot",
        "backbones": ["vit-b-32", "vit-b-16", "vit-l-14"],
        "domains": DOMAINS,
        "sources": "leave_one_out",
        "shots": [1, 2, 3, 4, 5],
        "seeds": list(range(1, seeds + 1)),
        "methods": [{"nothing": {"top_k": 12 + index}} for index in range(VARIANTS)],
    }
    grid = {"title": "Nothing", "description": "Cells that do nothing.", "protocol": "strict", "blocks": [block]}
    path = folder / "nothing.yaml"
    path.write_text(json.dumps(grid))  # JSON is YAML
    return load_grid(path, catalog, limit=size), catalog


def fan_out(cells: Sequence[Cell], store: Store, folder: Path) -> Measured:
    """Run half of the cells with ``run_cells``, then some of them in two bare ways, with stores of their own."""
    from ray.tune.experiment import Trial

    from orchestrator.execution.cluster import connect

    half, finished = len(cells) // 2, count(1)

    def stop(event: CellEvent) -> None:
        if event.kind == "finished" and next(finished) == half:
            raise KeyboardInterrupt

    with connect(None, cpus=WORKERS):
        run = on_tune(cells, RunSettings(store.url), on_event=stop)
        held = sum(type(thing) is Trial for thing in gc.get_objects())
        some = cells[: min(half, COMPARED)]
        bare = {"grid_ms": grid(some, folder / "grid").per_cell, "pool_ms": pool(some, folder / "pool").per_cell}
    return {"fanout_ms": run.per_cell, "held": held, **bare}


def resume(grid: Grid, catalog: Catalog, store: Store) -> Measured:
    """Run the open cells as a session does: with terminal view, status file and MLflow."""
    from rich.console import Console

    from orchestrator.execution.cluster import connect
    from orchestrator.progress.counter import ProgressCounter
    from orchestrator.progress.display import ProgressDisplay
    from orchestrator.progress.status_file import StatusFile

    begun = time.perf_counter()
    plan = make_plan(grid, catalog, store)
    replan = time.perf_counter() - begun

    def on_event(event: CellEvent) -> None:
        counter.on_event(event)
        if event.kind == "finished":
            writer.put(event.cell.id)

    with ExitStack() as stack:
        screen = stack.enter_context(open(os.devnull, "w"))
        counter = ProgressCounter(
            plan.todo, plan.build_gflops, plan.costs, finished_before=len(plan.done), slots=WORKERS
        )
        console = Console(file=screen, force_terminal=True)
        progress = ProgressDisplay(counter, StatusFile(store.files, grid.name), console)
        stack.enter_context(connect(None, cpus=WORKERS))
        stack.enter_context(progress)
        writer = stack.enter_context(GridRuns(grid, catalog, store).track_in_background(Console()))
        started = time.perf_counter()
        run = on_tune(plan.todo, RunSettings(store.url), on_event=on_event)
        while writer.pending:  # a session leaves these to `sync`
            time.sleep(0.01)
        if problem := writer.close():
            raise RuntimeError(problem)
        tracked = 1000 * (time.perf_counter() - started - run.start)  # the last run is in MLflow
    return {"replan_s": replan, "start_s": run.start, "tracked_ms": tracked / max(1, run.cells - 1)}


def plain(folder: Path) -> Measured:
    """Log runs of as many values as a cell's in another database, with one call of MLflow's client for each value."""
    from orchestrator.tracking.client import open_client

    client = open_client(f"sqlite:///{folder}/plain/mlflow.db")
    experiment = client.create_experiment("plain", artifact_location=str(folder / "plain" / "artifacts"))

    def log_run() -> None:
        run_id = client.create_run(experiment).info.run_id
        for index in range(15):
            client.log_param(run_id, f"parameter_{index}", index)
        for step in range(20):
            client.log_metric(run_id, "train_loss", 1 / (1 + step), step=step)
        for index in range(8):
            client.log_metric(run_id, f"metric_{index}", index)
        client.set_terminated(run_id)

    return {"plain_ms": 1000 * seconds(lambda: [log_run() for _ in range(PLAIN_RUNS)]) / PLAIN_RUNS}


def session(size: int, folder: Path) -> Measured:
    """Measure one size in this process."""
    begun = time.perf_counter()
    grid, catalog = load(size, folder)
    store = Store(folder / "store")
    plan = make_plan(grid, catalog, store)
    found = {"plan_s": time.perf_counter() - begun} | fan_out(plan.todo, store, folder)
    GridRuns(grid, catalog, store).open_tracker()  # makes MLflow's database, once per store; not measured
    found |= resume(grid, catalog, store)
    plan = make_plan(grid, catalog, store)
    if len(plan.done) != size or plan.todo:
        raise RuntimeError(f"{size - len(plan.done)} cells were forgotten")
    return {**found, **plain(folder)}


COLUMNS = ("plan_s", "fanout_ms", "held", "grid_ms", "pool_ms", "replan_s", "start_s", "tracked_ms", "plain_ms")


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--folder", type=Path, help="measure the first size in this process, and write here")
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(session(options.sizes[0], options.folder)))
        return
    print(f"{os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'cells':>6}  {'  '.join(COLUMNS)}", flush=True)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="bolt-bench-") as folder:
            arguments = [sys.executable, __file__, "--folder", folder, "--sizes", str(size)]
            done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        values = (f"{found[key]:>{len(key)}.1f}" for key in COLUMNS)
        print(f"{size:>6}  {'  '.join(values)}", flush=True)


if __name__ == "__main__":
    main()
