"""Utilisation of a node with 8 GPUs by cells with mixed GPU shares and realistic durations. The GPUs are simulated.

    python benchmarks/utilisation.py                         # about eight minutes

A cell sleeps. Durations are log-normal with a median of 18 s, limited to 5 to 60 s, and divided by --scale. As in a
few-shot grid, each dataset has cells that take a whole GPU, then a half, then a quarter, so the shares alternate.
Utilisation is the share of the GPUs that sleeping cells held, from the start of the first cell to the start of the last
wave. A wave is as many cells as ever ran at a time; in the last one, no scheduler can fill every slot. Compared:
    ours      run_cells
    tune      Tune as its documentation shows it: tune.grid_search, reuse_actors, resources as a function of the cell
    ideal     list scheduling of the same cells in the same order without overhead: the first cell that fits starts
Starting a process takes seconds of CPU time, which --scale does not divide, so leave the machine's other CPUs idle.
"""

import argparse
import heapq
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fanout import bare_tune, make_cells  # noqa: E402
from orchestrator.core.cell import Cell  # noqa: E402
from orchestrator.core.events import CellEvent, Resources  # noqa: E402
from orchestrator.core.settings import RunSettings  # noqa: E402
from orchestrator.execution.cluster import connect  # noqa: E402

GPUS = 8
CPUS = 8
CPUS_OF_A_CELL = 0.125
"""So small that CPUs never limit the cells: only GPUs are measured. Ray starts one process per CPU in advance."""

RUNNER = "benchmarks.utilisation:sleep"
DATASET = ((1.0, 8), (0.5, 5), (0.25, 8))
"""(share of a GPU, cells) of one dataset, in the order a plan has them."""

MEDIAN, SPREAD, SHORTEST, LONGEST = 18.0, 0.7, 5.0, 60.0


def seconds_of(number: int) -> float:
    """Draw the duration of a cell on a GPU."""
    drawn = random.Random(number).lognormvariate(0.0, SPREAD)
    return min(LONGEST, max(SHORTEST, MEDIAN * drawn))


def share_of(number: int) -> float:
    """Return the share of a GPU that a cell takes."""
    place = number % sum(count for _, count in DATASET)
    for share, count in DATASET:
        if place < count:
            return share
        place -= count
    raise AssertionError(number)


@dataclass(frozen=True)
class RecordedCell:
    """A cell that slept: its number, start, end and process."""

    number: int
    begun: float
    ended: float
    process: int


def sleep_and_record(number: int, folder: str) -> None:
    """Sleep as long as a cell takes, and record it in a file of this process."""
    scale = float(Path(folder, "scale").read_text())
    begun = time.time()
    time.sleep(seconds_of(number) / scale)
    with open(Path(folder, f"slept-{os.getpid()}"), "a") as stream:
        stream.write(json.dumps([number, begun, time.time(), os.getpid()]) + "\n")


def sleep(cell: Cell, settings: RunSettings) -> CellEvent:
    """Run a cell: sleep."""
    sleep_and_record(cell.seed, settings.store_url)
    return CellEvent(cell, "finished")


def recorded_cells(folder: Path) -> list[RecordedCell]:
    """Read the recorded cells."""
    lines = (line for path in folder.glob("slept-*") for line in path.read_text().splitlines())
    return [RecordedCell(*json.loads(line)) for line in lines]


@dataclass(frozen=True)
class Measured:
    """Utilisation up to the last wave; seconds from the first start to the last end; number of processes."""

    utilisation: float
    seconds: float
    processes: int


def measure(slept: Sequence[RecordedCell], count: int) -> Measured:
    """Compute the utilisation by the recorded cells. Raises ``RuntimeError`` unless each cell finished exactly once."""
    if sorted(one.number for one in slept) != list(range(count)):
        raise RuntimeError("a cell was forgotten, or finished twice")
    starts = sorted(one.begun for one in slept)
    wave = max(sum(one.begun <= at < one.ended for one in slept) for at in starts)
    start, last = starts[0], starts[-wave]
    busy = sum(share_of(one.number) * max(0.0, min(one.ended, last) - one.begun) for one in slept)
    end = max(one.ended for one in slept)
    return Measured(busy / (GPUS * (last - start)), end - start, len({one.process for one in slept}))


def ours(count: int, folder: Path) -> None:
    """Run the cells with ``run_cells``."""
    from orchestrator.execution.tune.driver import run_cells

    def check(event: CellEvent) -> None:
        if event.kind == "failed":
            raise RuntimeError(event.error)

    run_cells(
        make_cells(count),
        RunSettings(str(folder)),
        request=lambda cell: Resources(cpus=CPUS_OF_A_CELL, gpus=share_of(cell.seed)),
        max_attempts=3,
        on_event=check,
        runner=RUNNER,
    )


def tune(count: int, folder: Path) -> None:
    """Run the cells with Tune as its documentation shows it."""
    bare_tune(
        range(count),
        lambda number: sleep_and_record(number, str(folder)),
        folder,
        lambda number: {"cpu": CPUS_OF_A_CELL, "gpu": share_of(number)},
    )


def ideal(count: int, scale: float) -> Measured:
    """Schedule a list: as soon as a cell fits on one GPU, the first such cell in order starts."""
    free, running, now = [1.0] * GPUS, list[tuple[float, int, float]](), 0.0
    waiting, slept = list(range(count)), list[RecordedCell]()
    while waiting or running:
        for number in list(waiting):
            share = share_of(number)
            fitting = [gpu for gpu in range(GPUS) if free[gpu] >= share]
            if fitting:
                gpu = min(fitting, key=free.__getitem__)
                free[gpu] -= share
                end = now + seconds_of(number) / scale
                heapq.heappush(running, (end, gpu, share))
                slept.append(RecordedCell(number, now, end, gpu))
                waiting.remove(number)
            if not any(free):
                break
        now, gpu, share = heapq.heappop(running)
        free[gpu] += share
    return measure(slept, count)


WAYS: dict[str, Callable[[int, Path], None]] = {"ours": ours, "tune": tune}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=2.0, help="divides the durations of the cells")
    parser.add_argument("--datasets", type=int, default=6, help="each has 21 cells, about 12.5 GPUs' worth of work")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    options = parser.parse_args()
    if options.datasets < 2:
        parser.error("--datasets: one dataset is a single wave of cells; give two or more")
    count = options.datasets * sum(cells for _, cells in DATASET)
    print(f"{count} cells, {os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'way':>7} {'busy':>7} {'seconds':>8} {'against ideal':>14} {'processes':>10} {'load':>5}")
    best = ideal(count, options.scale)
    print(f"{'ideal':>7} {best.utilisation:>7.1%} {best.seconds:>8.1f} {1:>14.2f} {'':>10}", flush=True)
    with connect(None, cpus=CPUS, gpus=GPUS):
        for way in options.ways:
            with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
                folder = Path(name)
                Path(folder, "scale").write_text(str(options.scale))
                WAYS[way](count, folder)
                got = measure(recorded_cells(folder), count)
            print(
                f"{way:>7} {got.utilisation:>7.1%} {got.seconds:>8.1f} {got.seconds / best.seconds:>14.2f} "
                f"{got.processes:>10} {os.getloadavg()[0]:>5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
