"""How busy a node of 8 GPUs is kept by cells of mixed shares and realistic lengths; the GPUs are only believed in.

    python benchmarks/utilisation.py                         # about eight minutes
    python benchmarks/utilisation.py --ways ours --scale 1   # lengths as they are on a GPU

A cell sleeps. Lengths are log-normal with a median of 18 s, cut at 5 and 60 s, and divided by --scale. Per dataset, as
in a few-shot grid: cells that take a whole GPU, then a half, then a quarter; so the kinds alternate all the time.
Utilisation is the share of the GPUs that sleeping cells held, from the first cell's start to that of the last wave:
so many cells as were under way at a time. After that places run out of cells, whoever hands them out. Compared:
    ours      run_cells
    killed    the same; the process of a cell is killed in the middle and its cell started again
    tune      Tune as its documentation shows it: tune.grid_search, reuse_actors, resources by a function of the cell
    ideal     list scheduling of the same cells in the same order, nothing costs time: the first that fits, starts
Starting a process takes seconds of a processor, which is not divided by --scale and which this machine's few have
to do for 8 GPUs; a machine that is busy with other things starts them too late for the goal.
"""

from __future__ import annotations

import argparse
import heapq
import json
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fanout import make_cells  # noqa: E402
from orchestrator.cells.trial import CellOutcome  # noqa: E402
from orchestrator.core.cell import Cell  # noqa: E402
from orchestrator.core.events import CellEvent, Resources  # noqa: E402
from orchestrator.core.settings import RunSettings  # noqa: E402
from orchestrator.execution.cluster import Cluster  # noqa: E402

GPUS = 8
CPUS = 8
CPUS_OF_A_CELL = 0.125
"""Believed in, too, and never what is short: the GPUs are what is measured. Ray starts a process ahead for each CPU."""

RUNNER = "benchmarks.utilisation:sleep"
GOAL = 0.90
DATASET = ((1.0, 8), (0.5, 5), (0.25, 8))
"""(share of a GPU, cells) of one dataset, in the order a plan has them."""

MEDIAN, SPREAD, SHORTEST, LONGEST = 18.0, 0.7, 5.0, 60.0


def seconds_of(number: int) -> float:
    """How long a cell takes on a GPU."""
    drawn = random.Random(number).lognormvariate(0.0, SPREAD)
    return min(LONGEST, max(SHORTEST, MEDIAN * drawn))


def share_of(number: int) -> float:
    """What a cell takes of a GPU."""
    place = number % sum(count for _, count in DATASET)
    for share, count in DATASET:
        if place < count:
            return share
        place -= count
    raise AssertionError(number)


@dataclass(frozen=True)
class Slept:
    """One cell that slept, or began to: from when to when, in which process."""

    number: int
    begun: float
    ended: float
    process: int


def sleep_and_note(number: int, folder: str) -> None:
    """Sleep as long as a cell takes, and note it down in the process's own file."""
    scale = float(Path(folder, "scale").read_text())
    begun = time.time()
    Path(folder, f"begun-{number}").write_text(str(os.getpid()))
    time.sleep(seconds_of(number) / scale)
    with open(Path(folder, f"slept-{os.getpid()}"), "a") as stream:
        stream.write(json.dumps([number, begun, time.time(), os.getpid()]) + "\n")


def sleep(cell: Cell, settings: RunSettings) -> CellOutcome:
    """A cell."""
    sleep_and_note(cell.seed, settings.store_url)
    return CellOutcome(cell.id, "finished", 0.0)


def slept_in(folder: Path) -> list[Slept]:
    """What was noted down."""
    lines = (line for path in folder.glob("slept-*") for line in path.read_text().splitlines())
    return [Slept(*json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Measured:
    """Utilisation until the last wave starts; seconds from the first start to the last end; processes used."""

    utilisation: float
    seconds: float
    processes: int


def measure(slept: Sequence[Slept], count: int) -> Measured:
    """The utilisation of what was noted. Raises ``RuntimeError`` unless each cell finished exactly once."""
    if sorted(one.number for one in slept) != list(range(count)):
        raise RuntimeError("a cell was forgotten, or finished twice")
    starts = sorted(one.begun for one in slept)
    wave = max(sum(one.begun <= at < one.ended for one in slept) for at in starts)
    start, last = starts[0], starts[-wave]
    busy = sum(share_of(one.number) * max(0.0, min(one.ended, last) - one.begun) for one in slept)
    end = max(one.ended for one in slept)
    return Measured(busy / (GPUS * (last - start)), end - start, len({one.process for one in slept}))


def ours(count: int, folder: Path, on_event: Callable[[CellEvent], None] = lambda event: None) -> None:
    """Through the fan-out."""
    from orchestrator.execution.tune import run_cells

    def check(event: CellEvent) -> None:
        if event.kind == "failed":
            raise RuntimeError(event.error)
        on_event(event)

    run_cells(
        make_cells(count),
        RunSettings(str(folder)),
        resources=lambda cell: Resources(cpus=CPUS_OF_A_CELL, gpus=share_of(cell.seed)),
        max_attempts=3,
        on_event=check,
        runner=RUNNER,
    )


def killed(count: int, folder: Path) -> None:
    """The same, and in the middle a process is killed."""

    def kill(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == count // 2 and event.attempt == 1:
            threading.Thread(target=_kill_when_begun, args=(folder / f"begun-{event.cell.seed}",)).start()

    ours(count, folder, kill)


def _kill_when_begun(note: Path) -> None:
    for _ in range(1000):
        if note.exists() and (process := note.read_text()):
            os.kill(int(process), signal.SIGKILL)
            return
        time.sleep(0.01)


def tune(count: int, folder: Path) -> None:
    """Tune by the book."""
    from ray import tune as ray_tune

    class Trainable(ray_tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.number = config["cell"]

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.number = new_config["cell"]
            return True

        def step(self) -> dict[str, Any]:
            sleep_and_note(self.number, str(folder))
            return {"done": True}

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    asks = ray_tune.with_resources(Trainable, lambda config: {"cpu": CPUS_OF_A_CELL, "gpu": share_of(config["cell"])})
    ray_tune.Tuner(
        asks,
        param_space={"cell": ray_tune.grid_search(list(range(count)))},
        tune_config=ray_tune.TuneConfig(reuse_actors=True),
        run_config=ray_tune.RunConfig(
            storage_path=str(folder / "tune"),
            verbose=0,
            checkpoint_config=ray_tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()


def ideal(count: int, scale: float) -> Measured:
    """List scheduling: whenever there is room on one GPU for the first cell in order that fits, it starts."""
    free, running, now = [1.0] * GPUS, list[tuple[float, int, float]](), 0.0
    waiting, slept = list(range(count)), list[Slept]()
    while waiting or running:
        for number in list(waiting):
            share = share_of(number)
            places = [gpu for gpu in range(GPUS) if free[gpu] >= share]
            if places:
                gpu = min(places, key=free.__getitem__)
                free[gpu] -= share
                end = now + seconds_of(number) / scale
                heapq.heappush(running, (end, gpu, share))
                slept.append(Slept(number, now, end, gpu))
                waiting.remove(number)
            if not any(free):
                break
        now, gpu, share = heapq.heappop(running)
        free[gpu] += share
    return measure(slept, count)


WAYS: dict[str, Callable[[int, Path], None]] = {"ours": ours, "killed": killed, "tune": tune}


def main() -> int:
    """Measure, print, and say whether the goal was met; returns 1 where it was not."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=2.0, help="divide the lengths of the cells by it")
    parser.add_argument("--datasets", type=int, default=6, help="each has 21 cells, about 12.5 GPUs' worth of work")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    count = options.datasets * sum(cells for _, cells in DATASET)
    print(f"{count} cells, {os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'way':>7} {'busy':>7} {'seconds':>8} {'against ideal':>14} {'processes':>10} {'load':>5}")
    best = ideal(count, options.scale)
    print(f"{'ideal':>7} {best.utilisation:>7.1%} {best.seconds:>8.1f} {1:>14.2f} {'':>10}", flush=True)
    found: dict[str, Measured] = {}
    with Cluster.connect(None, cpus=CPUS, gpus=GPUS):
        for way in options.ways:
            with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
                folder = Path(name)
                Path(folder, "scale").write_text(str(options.scale))
                WAYS[way](count, folder)
                got = found[way] = measure(slept_in(folder), count)
            print(
                f"{way:>7} {got.utilisation:>7.1%} {got.seconds:>8.1f} {got.seconds / best.seconds:>14.2f} "
                f"{got.processes:>10} {os.getloadavg()[0]:>5.1f}",
                flush=True,
            )
    missed = 0
    for way in ("ours", "killed"):
        if way in found:
            met = found[way].utilisation >= GOAL
            print(f"{'met' if met else 'MISSED':>6}  {way}: {found[way].utilisation:.1%} busy, goal {GOAL:.0%}")
            missed += not met
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
