"""Whole sessions of 1,000, 10,000 and 50,000 cells (a lab's yearly sweep), of which none computes anything.

    python benchmarks/scale.py                                      # 40 minutes on two cores, 30 of them 50,000
    python benchmarks/scale.py --sizes 1000

So many cells of the few-shot grid are planned against a real store, and each writes a real result. In turn:

    plan      expand and plan the grid with an empty store
    fanout    run half of the cells, with Tune and the store only, and stop
    resume    plan the open cells, reading half of the results, and run them as a session does: with the terminal view,
              the status file, and every cell tracked in MLflow (SQLite) in the background

Rivals with at most 1,000 cells: `grid_ms`, a bare tune.grid_search, whose time is quadratic in the number of cells;
`pool_ms`, a ray.util.ActorPool without trials, retries or resume, about the least for Ray; `plain_ms`, a run logged
with MLflow's plain client. `start_s`: until the first cell of the resume has ended; `ms`: of each further cell.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path

from benchmarks.common import command, print_head, print_row, seconds
from benchmarks.fanout import WORKERS, grid, on_tune, per_cell, pool
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent
from orchestrator.core.settings import RunSettings
from orchestrator.grid import Grid
from orchestrator.planning.plan import make_plan
from orchestrator.sharing.grid_listing import expand_grid
from orchestrator.store import Store
from orchestrator.tracking.grid_runs import GridRuns

COMPARED, PLAIN_RUNS = 1000, 20
"""How many cells Ray's bare ways run at most, and how many runs MLflow's plain client logs."""


def fan_out(cells: Sequence[Cell], store: Store, folder: Path) -> dict[str, float]:
    """Run half of the cells with ``run_cells``, then some of them in two bare ways, with stores of their own."""
    from orchestrator.execution.cluster import connect

    half, finished = len(cells) // 2, count(1)

    def stop(event: CellEvent) -> None:
        if event.kind == "finished" and next(finished) == half:
            raise KeyboardInterrupt

    some = cells[: min(half, COMPARED)]
    with connect(None, cpus=WORKERS):
        return {
            "fanout_ms": per_cell(on_tune(cells, RunSettings(store.url), on_event=stop)),
            "grid_ms": per_cell(grid(some, folder / "grid")),
            "pool_ms": per_cell(pool(some, folder / "pool")),
        }


def resume(grid: Grid, catalog: Catalog, store: Store) -> dict[str, float]:
    """Run the open cells as a session does: with terminal view, status file and MLflow."""
    from rich.console import Console

    from orchestrator.execution.cluster import connect
    from orchestrator.progress.counter import ProgressCounter
    from orchestrator.progress.display import ProgressDisplay
    from orchestrator.progress.status_file import StatusFile

    begun, settings = time.perf_counter(), RunSettings(store.url)
    plan = make_plan(grid, catalog, store)
    replan = time.perf_counter() - begun
    counter = ProgressCounter.of_plan(plan, store, settings, local=False)

    def on_event(event: CellEvent) -> None:
        counter.on_event(event)
        if event.kind == "finished":
            writer.put(event.cell.id)

    with ExitStack() as stack:
        console = Console(file=stack.enter_context(open(os.devnull, "w")), force_terminal=True)
        stack.enter_context(connect(None, cpus=WORKERS))
        stack.enter_context(ProgressDisplay(counter, StatusFile(store.files, grid.name), console))
        writer = stack.enter_context(GridRuns(grid, catalog, store).track_in_background(Console()))
        started = time.perf_counter()
        ended = on_tune(plan.todo, settings, on_event=on_event)
        while writer.pending:  # a session leaves these to `sync`
            time.sleep(0.01)
        if problem := writer.close():
            raise RuntimeError(problem)
        last_tracked = time.perf_counter()
    return {"replan_s": replan, "start_s": ended[0] - started, "tracked_ms": per_cell([*ended[:-1], last_tracked])}


def plain(folder: Path) -> dict[str, float]:
    """Log runs of as many values as a cell's in another database, with one call of MLflow's client for each value."""
    from orchestrator.tracking.client import open_client

    client = open_client(f"sqlite:///{folder}/plain/mlflow.db")
    experiment = client.create_experiment("plain", artifact_location=str(folder / "plain" / "artifacts"))

    def log_runs() -> None:
        for _ in range(PLAIN_RUNS):
            run_id = client.create_run(experiment).info.run_id
            for index in range(15):
                client.log_param(run_id, f"parameter_{index}", index)
            for step in range(20):
                client.log_metric(run_id, "train_loss", 1 / (1 + step), step=step)
            for index in range(8):
                client.log_metric(run_id, f"metric_{index}", index)
            client.set_terminated(run_id)

    return {"plain_ms": 1000 * seconds(log_runs) / PLAIN_RUNS}


def session(size: int, folder: Path) -> dict[str, float]:
    """Measure one size in this process."""
    begun = time.perf_counter()
    seeds = list(range(1, size // 13_000 + 2))  # for each seed, the few-shot grid has more cells than that
    store = Store(folder / "store")
    grid, catalog = expand_grid("fewshot", RunSettings(store.url), [f"seeds={seeds}"], limit=size)
    plan = make_plan(grid, catalog, store)
    found = {"plan_s": time.perf_counter() - begun} | fan_out(plan.todo, store, folder)
    GridRuns(grid, catalog, store).open_tracker()  # makes MLflow's database, once per store; not measured
    found |= resume(grid, catalog, store)
    plan = make_plan(grid, catalog, store)
    if len(plan.done) != size or plan.todo:
        raise RuntimeError(f"{size - len(plan.done)} cells were forgotten")
    return {**found, **plain(folder)}


COLUMNS = ("plan_s", "fanout_ms", "grid_ms", "pool_ms", "replan_s", "start_s", "tracked_ms", "plain_ms")


def main() -> None:
    parser = command(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--folder", type=Path, help="measure the first size in this process, and write here")
    options = parser.parse_args()
    if options.folder:
        print(json.dumps(session(options.sizes[0], options.folder)))
        return
    print_head(f"cells, on {os.cpu_count()} CPUs; load before: {os.getloadavg()[0]:.1f}", COLUMNS)
    for size in options.sizes:
        with tempfile.TemporaryDirectory(prefix="bolt-bench-") as folder:
            arguments = [sys.executable, __file__, "--folder", folder, "--sizes", str(size)]
            done = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        print_row(size, (f"{found[key]:.1f}" for key in COLUMNS))


if __name__ == "__main__":
    main()
