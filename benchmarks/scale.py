"""Whole sessions of 1,000, 10,000 and 50,000 cells (a lab's yearly sweep) of a method that does nothing.

    python benchmarks/scale.py                                      # 40 minutes on two cores, 30 of them 50,000
    python benchmarks/scale.py --sizes 1000 10000                   # 9 minutes on two cores
    python benchmarks/scale.py --sizes 1000 --parts plan report     # without Ray

A real grid file is expanded over the catalog's 32 image datasets and planned against a real store; every cell writes
one real result. Each size has two drivers, one process after the other, as when a grid is stopped and continued:

    plan      the first driver expands and plans the grid with an empty store
    fanout    it runs half of the cells, with Tune and the store only, and is stopped
    resume    the second driver plans the open cells, reading half of the results, and runs them as a session does: with
              the terminal view, the status file, and every cell tracked in MLflow (SQLite) in the background
    sync      it writes the other half to MLflow, and then syncs again with nothing to do
    report    it writes the report

`driver ms` is the driver's CPU time per cell of `fanout`. `held` is the number of trials that Tune held when the last
cell of a half had finished. `resume s` is the time from the start of the process to its first new cell; it includes the
starts of Python and Ray. `MiB` is the larger peak memory (VmHWM) of the two drivers.

When a part is left out, what later parts need of it is written directly and not measured.

For comparison, the same run measures the minimum of each part: the same cells on `ray.util.ActorPool`, without trials,
retries or resume; writing, syncing and renaming a result's bytes; logging a run with MLflow's plain client.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[1]
BEGUN = time.time()
sys.path.insert(0, str(ROOT))

from benchmarks.fanout import RUNNER, WORKERS, pool, record_nothing, scratch  # noqa: E402

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.core.cell import Cell
    from orchestrator.core.events import CellEvent
    from orchestrator.grid import Grid
    from orchestrator.planning.plan import Plan
    from orchestrator.store import Store

PARTS = ("plan", "fanout", "resume", "sync", "report")
COMPARED = 1000
"""At most so many cells are run on the ActorPool."""
SYNCED_FILES, PLAIN_RUNS = 300, 20

DOMAINS = ("general", "remote_sensing")
GRID = """\
title: Nothing
description: As many cells as wanted of a method that does nothing.
protocol: {{name: strict, short_classes: take_all}}
blocks:
  - track: fewshot
    backbones: [vit-b-32, vit-b-16, vit-l-14]
    domains: [general, remote_sensing]
    sources: leave_one_out
    shots: [1, 2, 4, 8, 16]
    seeds: [{seeds}]
    methods: [{methods}]
"""
VARIANTS, LEAST_SEEDS = 8, 3
"""As in the few-shot grid. Larger grids have more seeds."""

GOALS_AT = 10_000
GOALS = {
    "plan_s": (5.0, "s to expand and plan"),
    "fanout_ms": (15.0, "ms a cell for Tune and the store"),
    "tracked_ms": (40.0, "ms a cell with tracking"),
    "resume_s": (20.0, "s from a stop to the next cell"),
    "peak_mib": (2048.0, "MiB of memory of the driver"),
}
HELD_GOAL = 20
"""Maximum number of trials that Tune holds when half of the cells have ended, at any size."""
GROWTH = ("plan_s", "fanout_ms", "driver_ms", "tracked_ms", "sync_s", "report_s")
GROWTH_GOAL = 1.5
"""Maximum time per cell at the largest size, relative to the smallest size."""

Measured = dict[str, float]


# -- the grid ----------------------------------------------------------------------------------------------------------


def register_nothing() -> None:
    """Register the method that does nothing in this process. Workers do not need it."""
    from bolt.methods.base import Method, register

    @dataclass(frozen=True)
    class Settings:
        top_k: int = 12
        epochs: int = 20
        learning_rate: float = 1e-3

    def adapt(task: Any, settings: Settings) -> Any:
        raise AssertionError("the runner of this benchmark makes no task")

    register(
        Method(
            "nothing", "Nothing", "", Settings, adapt, uses_sources=True, uses_mean_task_vector=True, changes_tower=True
        )
    )


def load(size: int, folder: Path) -> tuple[Grid, Catalog]:
    """Load a grid of exactly ``size`` cells from a file."""
    from orchestrator.catalog import load_catalog
    from orchestrator.grid import load_grid

    catalog = load_catalog()
    targets = sum(
        entry.has_training_images and entry.domain in ("general", "remote_sensing")
        for entry in catalog.datasets.values()
    )
    seeds = max(LEAST_SEEDS, -(-size // (3 * targets * 5 * VARIANTS)))
    path = folder / "nothing.yaml"
    variants = (f"nothing: {{top_k: {12 + index}}}" for index in range(VARIANTS))
    path.write_text(GRID.format(seeds=", ".join(map(str, range(1, seeds + 1))), methods=", ".join(variants)))
    return load_grid(path, catalog, limit=size), catalog


def fill(store: Store, cells: Sequence[Cell]) -> None:
    """Record results without running the cells, for parts whose predecessor was left out."""
    from orchestrator.core.settings import RunSettings

    there = store.result_ids()
    for cell in cells:
        if cell.id not in there:
            record_nothing(cell, RunSettings(store.url))


# -- the first driver --------------------------------------------------------------------------------------------------


def first(size: int, parts: Sequence[str], folder: Path) -> Measured:
    """The first driver: expand and plan the grid, run half of it, stop."""
    from orchestrator.cli.grid_runs import GridRuns
    from orchestrator.planning.plan import make_plan
    from orchestrator.store import Store

    register_nothing()
    begun = time.perf_counter()
    grid, catalog = load(size, folder)
    store = Store(folder / "store")
    expanded = time.perf_counter()
    plan = make_plan(grid, catalog, store)
    found = {"expand_s": expanded - begun, "plan_s": time.perf_counter() - begun}
    if "fanout" in parts:
        found |= fan_out(plan, store, folder)
    if "resume" in parts:
        GridRuns(grid, catalog, store).open_tracker()  # makes MLflow's database, once per store; not measured
    return found


def fan_out(plan: Plan, store: Store, folder: Path) -> Measured:
    """Run half of the cells on Tune, then some of them on an ActorPool with a store of its own."""
    from orchestrator.execution.cluster import connect

    half = len(plan.todo) // 2
    with connect(None, cpus=WORKERS):
        clock = Clock()
        clock.run(plan.todo, store, stop_after=half)
        compared = pool(list(plan.todo[: min(half, COMPARED)]), folder / "pool")
    return {
        "start_s": clock.first - clock.begun,
        "fanout_ms": clock.per_cell,
        "driver_ms": clock.driver_per_cell,
        "held": clock.held,
        "pool_ms": compared.per_cell,
        "file_ms": file_milliseconds(store, folder),
    }


def trials_held() -> int:
    """The number of Tune's trials in this process's memory."""
    from ray.tune.experiment import Trial

    return sum(type(thing) is Trial for thing in gc.get_objects())


class Clock:
    """Runs cells and measures when the run began, when the first cell had finished, and when all had.

    It also measures the driver's CPU time, which hardly depends on what else is running.
    """

    def __init__(self) -> None:
        self.begun = self.first = self.end = 0.0
        self.worked = 0.0
        self.cells = self.held = 0

    def run(
        self,
        cells: Sequence[Cell],
        store: Store,
        *,
        stop_after: int | None = None,
        on_event: Callable[[CellEvent], None] = lambda event: None,
        on_first: Callable[[], None] = lambda: None,
    ) -> None:
        """Run cells, and stop after ``stop_after`` of them. Raises ``RuntimeError`` when one fails."""
        from orchestrator.core.events import Resources
        from orchestrator.core.settings import RunSettings
        from orchestrator.execution.tune.driver import run_cells

        def note(event: CellEvent) -> None:
            if event.kind == "failed":
                raise RuntimeError(event.error)
            on_event(event)
            if event.kind != "finished":
                return
            if not self.cells:
                self.first, self.worked = time.perf_counter(), -time.process_time()
                on_first()
            self.cells += 1
            if self.cells == (stop_after or len(cells)):
                self.held = trials_held()
            if self.cells == stop_after:
                self.end = time.perf_counter()
                raise KeyboardInterrupt

        self.begun = time.perf_counter()
        with suppress(KeyboardInterrupt):
            run_cells(
                cells,
                RunSettings(store.url),
                resources=lambda cell: Resources(),
                max_attempts=1,
                on_event=note,
                runner=RUNNER,
            )
        self.end = self.end or time.perf_counter()
        self.worked += time.process_time()

    @property
    def per_cell(self) -> float:
        """Milliseconds per cell after the first."""
        return 1000 * (self.end - self.first) / max(1, self.cells - 1)

    @property
    def driver_per_cell(self) -> float:
        """Milliseconds of this process's CPU time per cell after the first."""
        return 1000 * self.worked / max(1, self.cells - 1)


def file_milliseconds(store: Store, folder: Path) -> float:
    """Milliseconds to write a result's bytes, sync them to disk and rename the file, without a store."""
    body = store.files.read(f"results/{min(store.result_ids())}.json")
    target = folder / "files"
    target.mkdir()
    begun = time.perf_counter()
    for number in range(SYNCED_FILES):
        with open(target / "part", "wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(target / "part", target / f"{number}.json")
    return 1000 * (time.perf_counter() - begun) / SYNCED_FILES


# -- the second driver -------------------------------------------------------------------------------------------------


def second(size: int, parts: Sequence[str], folder: Path) -> Measured:
    """The second driver: plan and run the open cells as a session does, write the report, sync."""
    from orchestrator.cli.grid_runs import GridRuns
    from orchestrator.planning.plan import make_plan
    from orchestrator.report.grid_report import grid_study, write_grid_report
    from orchestrator.store import Store

    register_nothing()
    grid, catalog = load(size, folder)
    store = Store(folder / "store")
    found: Measured = {}
    if "resume" in parts:
        if not store.result_ids():
            fill(store, make_plan(grid, catalog, store).cells[: size // 2])
        found |= resume(grid, catalog, store)
    fill(store, grid.cells)
    plan = make_plan(grid, catalog, store)
    if len(plan.done) != size or plan.todo:
        raise RuntimeError(f"{size - len(plan.done)} cells were forgotten")
    if "report" in parts:
        begun = time.perf_counter()
        write_grid_report(grid_study(plan, store), store)
        found["report_s"] = time.perf_counter() - begun
    if "sync" in parts:
        runs = GridRuns(grid, catalog, store)
        tracker, describe = runs.open_tracker(), runs.label
        begun = time.perf_counter()
        synced = tracker.sync(plan.done, describe)
        found["sync_s"], found["added"] = time.perf_counter() - begun, synced.added
        if synced.removed:
            raise RuntimeError(f"{synced.removed} cells were tracked twice")
        begun = time.perf_counter()
        if (again := tracker.sync(plan.done, describe)).added:
            raise RuntimeError(f"a second sync added {again.added} runs")
        found["again_s"] = time.perf_counter() - begun
        found["plain_ms"] = plain_milliseconds(folder)
    return found


def resume(grid: Grid, catalog: Catalog, store: Store) -> Measured:
    """Run the open cells with everything a session has."""
    from rich.console import Console

    from orchestrator.cli.grid_runs import GridRuns
    from orchestrator.execution.cluster import connect
    from orchestrator.planning.plan import make_plan
    from orchestrator.progress.counter import ProgressCounter
    from orchestrator.progress.display import ProgressDisplay
    from orchestrator.progress.status_file import StatusFile

    begun = time.perf_counter()
    plan = make_plan(grid, catalog, store)
    found = {"replan_s": time.perf_counter() - begun}

    def on_event(event: CellEvent) -> None:
        counter.on_event(event)
        if event.kind == "finished":
            writer.put(event.cell.id)

    def on_first() -> None:
        found["resume_s"] = time.time() - BEGUN

    with ExitStack() as stack:
        screen = stack.enter_context(open(os.devnull, "w"))
        counter = ProgressCounter(
            plan.todo,
            {spec.address: spec.gflops(catalog) for spec in plan.missing},
            plan.costs,
            finished_before=len(plan.done),
            slots=WORKERS,
        )
        console = Console(file=screen, force_terminal=True)
        progress = ProgressDisplay(counter, StatusFile(store.files, grid.name), console)
        stack.enter_context(connect(None, cpus=WORKERS))
        stack.enter_context(progress)
        writer = stack.enter_context(GridRuns(grid, catalog, store).track_in_background(Console()))
        store.remove_failures(cell.id for cell in plan.todo)
        clock = Clock()
        clock.run(plan.todo, store, on_event=on_event, on_first=on_first)
        while writer.pending:  # a session leaves these to `sync`
            time.sleep(0.01)
        if problem := writer.close():
            raise RuntimeError(problem)
        clock.end = time.perf_counter()  # the last run is in MLflow
    if clock.cells != len(plan.todo):
        raise RuntimeError(f"{clock.cells} cells were run, {len(plan.todo)} were open")
    return {**found, "tracked_ms": clock.per_cell, "held": clock.held}


def plain_milliseconds(folder: Path) -> float:
    """Milliseconds to log a run with as many values by one MLflow client call each, in a database of its own."""
    from orchestrator.tracking.client import open_client

    client = open_client(f"sqlite:///{folder}/plain/mlflow.db")
    experiment = client.create_experiment("plain", artifact_location=str(folder / "plain" / "artifacts"))
    begun = time.perf_counter()
    for number in range(PLAIN_RUNS):
        run_id = client.create_run(experiment, run_name=str(number)).info.run_id
        for index in range(15):
            client.log_param(run_id, f"parameter_{index}", index)
        for step in range(20):
            client.log_metric(run_id, "train_loss", 1 / (1 + step), step=step)
        for index in range(8):
            client.log_metric(run_id, f"metric_{index}", index)
        client.set_terminated(run_id)
    return 1000 * (time.perf_counter() - begun) / PLAIN_RUNS


# -- all sizes ---------------------------------------------------------------------------------------------------------


def measure(size: int, parts: Sequence[str]) -> Measured:
    """Run both drivers of one size, each in a process of its own."""
    found: Measured = {"load": os.getloadavg()[0]}
    with scratch() as folder:
        for driver, its_parts in (("first", {"plan", "fanout"}), ("second", {"resume", "sync", "report"})):
            if not its_parts & set(parts):
                continue
            command = [sys.executable, __file__, "--driver", driver, "--folder", str(folder)]
            command += ["--sizes", str(size), "--parts", *parts]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"the {driver} driver of {size} cells ended with {done.returncode}:\n{done.stderr}")
            output = json.loads(done.stdout.splitlines()[-1])
            found["peak_mib"] = max(found.get("peak_mib", 0.0), output.pop("peak_mib"))
            found |= output
    return found


def peak_mebibytes() -> float:
    """The peak memory of this process."""
    kib = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kib[1]) / 1024 if kib else float("nan")


COLUMNS = {
    "expand_s": "expand s", "plan_s": "+plan s", "fanout_ms": "fanout ms", "driver_ms": "driver ms",
    "held": "held", "tracked_ms": "tracked ms",
    "replan_s": "replan s", "resume_s": "resume s", "sync_s": "sync s", "added": "added", "again_s": "again s",
    "report_s": "report s", "peak_mib": "MiB", "pool_ms": "pool ms", "file_ms": "file ms", "plain_ms": "plain ms",
    "load": "load",
}  # fmt: skip


def row(size: int, found: Measured) -> str:
    """One line of the table. What was not measured stays empty."""
    digits = {"added": 0, "peak_mib": 0, "held": 0}
    values = (
        f"{found[key]:>{len(name)}.{digits.get(key, 1)}f}" if key in found else " " * len(name)
        for key, name in COLUMNS.items()
    )
    return f"{size:>6}  {'  '.join(values)}"


def compare_with_goals(found: dict[int, Measured]) -> list[tuple[str, bool]]:
    """Each goal as a text, and whether it was met."""
    checks = []
    for key, (goal, words) in GOALS.items():
        if (value := found.get(GOALS_AT, {}).get(key)) is not None:
            checks.append((f"{value:.1f} {words} at {GOALS_AT:,} cells, goal {goal:g}", value <= goal))
    least, most = min(found), max(found)
    if (held := found[most].get("held")) is not None:
        words = f"{held:.0f} trials held by Tune when {most // 2:,} had ended, goal {HELD_GOAL}"
        checks.append((words, held <= HELD_GOAL))
    for key in GROWTH if most > least else ():
        if key in found[least] and key in found[most]:
            per_cell = key.endswith("_ms")
            growth = found[most][key] / found[least][key] * (1 if per_cell else least / most)
            words = f"{key.rpartition('_')[0]} takes {growth:.2f} times as long per cell at {most:,} as at {least:,}"
            checks.append((f"{words}, goal {GROWTH_GOAL}", growth <= GROWTH_GOAL))
    return checks


def ratios(found: Measured) -> list[str]:
    """The cost of each part relative to its minimum."""
    pairs = (
        ("fanout_ms", "pool_ms", "of an ActorPool that writes the same results"),
        ("fanout_ms", "file_ms", "of writing and syncing a result's bytes"),
        ("tracked_ms", "plain_ms", "of a run by MLflow's plain client calls"),
    )
    return [
        f"{key.rpartition('_')[0]} is {found[key] / found[least]:.2f} times the {found[least]:.1f} ms {words}"
        for key, least, words in pairs
        if key in found and least in found
    ]


def main() -> int:
    """Measure, print, and compare with the goals; returns 1 when one was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 50_000])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--driver", choices=("first", "second"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.driver:
        output = {"first": first, "second": second}[options.driver](options.sizes[0], options.parts, options.folder)
        print(json.dumps({**output, "peak_mib": peak_mebibytes()}))
        return 0
    print(f"{os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'cells':>6}  {'  '.join(COLUMNS.values())}", flush=True)
    found: dict[int, Measured] = {}
    for size in options.sizes:
        found[size] = measure(size, options.parts)
        print(row(size, found[size]), flush=True)
    for line in ratios(found[max(found)]):
        print(line)
    checks = compare_with_goals(found)
    for text, met in checks:
        print(f"{'met' if met else 'MISSED':>6}  {text}")
    return 0 if all(met for _, met in checks) else 1


if __name__ == "__main__":
    raise SystemExit(main())
