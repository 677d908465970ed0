"""Utilisation of a node with 8 GPUs by cells with realistic durations. The GPUs are simulated.

    python benchmarks/utilisation.py                         # about eight minutes
    python benchmarks/utilisation.py --race 6                # a race of six places; about ten minutes

A cell sleeps. Durations are log-normal with a median of 18 s, limited to 5 to 60 s, and divided by --scale. As in a
few-shot grid, each dataset has cells that take a whole GPU, then a half, then a quarter, so the shares alternate.
Utilisation is the share of the GPUs that sleeping cells held, from the start of the first cell to the start of the last
wave. A wave is as many cells as ever ran at a time; in the last one, no scheduler can fill every slot. Compared:
    ours      run_cells
    tune      Tune as its documentation shows it: tune.grid_search, reuse_actors, resources as a function of the cell
    ideal     list scheduling of the same cells in the same order without overhead: the first cell that fits starts

At each place of a race, 12 methods are measured on 16 datasets, and one method leads by 3 points. A cell takes a whole
GPU. Utilisation counts up to the end of the last cell. Compared:
    ours      a place that has decided goes on, up to ``LOOKS_AHEAD`` looks; then ``run_cells`` starts again
    together  ``run_cells`` for each block: no place goes on before all have decided
    ideal     list scheduling, where each place goes on as soon as it has decided, without overhead

Starting a process takes seconds of CPU time, which --scale does not divide, so leave the machine's other CPUs idle.
"""

import argparse
import heapq
import itertools
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.fanout import bare_tune, make_cells  # noqa: E402
from benchmarks.race_promise import SAVING, blocks, draws_of  # noqa: E402
from orchestrator.analysis.race import race  # noqa: E402
from orchestrator.core.cell import Cell  # noqa: E402
from orchestrator.core.events import CellEvent, Resources  # noqa: E402
from orchestrator.core.settings import RunSettings  # noqa: E402
from orchestrator.execution.cluster import connect  # noqa: E402
from orchestrator.planning.plan import LOOKS_AHEAD  # noqa: E402

GPUS = 8
CPUS = 8
CPUS_OF_A_CELL = 0.125
"""So small that CPUs never limit the cells: only GPUs are measured. Ray starts one process per CPU in advance."""

RUNNER = "benchmarks.utilisation:sleep"
DATASET = ((1.0, 8), (0.5, 5), (0.25, 8))
"""(share of a GPU, cells) of one dataset, in the order a plan has them."""

DATASETS = 16
"""Of a race."""

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


def race_blocks(places: int, methods: int) -> list[list[list[int]]]:
    """Return the numbers of the cells of each block, for each place: all methods that are left, on one dataset."""
    scores = draws_of(SAVING["a lead of 3 points"], places, methods, DATASETS, seed=1)
    counted = itertools.count()
    return [
        [[next(counted) for _ in block] for block in blocks(race(scores_MN[..., None]), DATASETS)]
        for scores_MN in scores
    ]


def run_race(places: Sequence[Sequence[Sequence[int]]], folder: Path, looks: int) -> None:
    """Run a race. A place that has decided goes on for ``looks`` further blocks, then waits for the others."""
    from orchestrator.execution.tune.driver import run_cells

    cells = make_cells(sum(len(block) for place in places for block in place))
    place_of = {number: p for p, place in enumerate(places) for block in place for number in block}
    for first in range(0, max(map(len, places)), looks + 1):
        coming = [deque(place[first : first + looks + 1]) for place in places]
        start = [number for place in coming if place for number in place.popleft()]
        later = [number for place in coming for block in place for number in block]
        unfinished = Counter(place_of[number] for number in start)

        def on_event(event: CellEvent, coming: Any = coming, unfinished: Counter[int] = unfinished) -> list[Cell]:
            if event.kind == "failed":
                raise RuntimeError(event.error)
            p = place_of[event.cell.seed]
            unfinished[p] -= event.kind == "finished"
            if unfinished[p] or not coming[p]:
                return []
            block = coming[p].popleft()
            unfinished[p] = len(block)
            return [cells[number] for number in block]

        run_cells(
            [cells[number] for number in start],
            RunSettings(str(folder)),
            on_event,
            later=[cells[number] for number in later],
            request=lambda cell: Resources(cpus=CPUS_OF_A_CELL, gpus=1.0),
            max_attempts=3,
            runner=RUNNER,
        )


def ideal_race(places: Sequence[Sequence[Sequence[int]]], scale: float) -> float:
    """Return the seconds of list scheduling in which each place goes on by itself."""
    coming = [deque(place) for place in places]
    waiting = deque((number, p) for p, place in enumerate(coming) for number in place.popleft())
    unfinished = Counter(p for _, p in waiting)
    running, now = list[tuple[float, int]](), 0.0
    while waiting or running:
        while waiting and len(running) < GPUS:
            number, p = waiting.popleft()
            heapq.heappush(running, (now + seconds_of(number) / scale, p))
        now, p = heapq.heappop(running)
        unfinished[p] -= 1
        if not unfinished[p] and coming[p]:
            block = coming[p].popleft()
            unfinished[p] = len(block)
            waiting.extend((number, p) for number in block)
    return now


def main_race(places: int, methods: int, scale: float, ways: Sequence[str]) -> None:
    """Compare the ways to run a race."""
    blocks_of = race_blocks(places, methods)
    numbers = [number for place in blocks_of for block in place for number in block]
    busy, best = sum(map(seconds_of, numbers)) / scale / GPUS, ideal_race(blocks_of, scale)
    print(f"{len(numbers)} cells, {os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'way':>9} {'busy':>7} {'seconds':>8} {'against ideal':>14} {'processes':>10}")
    print(f"{'ideal':>9} {busy / best:>7.1%} {best:>8.1f} {1:>14.2f}", flush=True)
    with connect(None, cpus=CPUS, gpus=GPUS):
        for way in ways:
            with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
                Path(name, "scale").write_text(str(scale))
                run_race(blocks_of, Path(name), RACE_WAYS[way])
                slept = recorded_cells(Path(name))
            if sorted(cell.number for cell in slept) != numbers:
                raise RuntimeError("a cell was forgotten, or finished twice")
            seconds = max(cell.ended for cell in slept) - min(cell.begun for cell in slept)
            processes = len({cell.process for cell in slept})
            print(
                f"{way:>9} {busy / seconds:>7.1%} {seconds:>8.1f} {seconds / best:>14.2f} {processes:>10}", flush=True
            )


RACE_WAYS = {"ours": LOOKS_AHEAD, "together": 0}
"""Looks for which a place goes on."""

WAYS: dict[str, Callable[[int, Path], None]] = {"ours": ours, "tune": tune}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=2.0, help="divides the durations of the cells")
    parser.add_argument("--datasets", type=int, default=6, help="each has 21 cells, about 12.5 GPUs' worth of work")
    parser.add_argument("--ways", nargs="+", choices=sorted({*WAYS, *RACE_WAYS}), help="all by default")
    parser.add_argument("--race", type=int, metavar="PLACES", help="run a race of so many places instead")
    parser.add_argument("--methods", type=int, default=12, help="of the race")
    options = parser.parse_args()
    if options.race:
        main_race(options.race, options.methods, options.scale, options.ways or list(RACE_WAYS))
        return
    if options.datasets < 2:
        parser.error("--datasets: one dataset is a single wave of cells; give two or more")
    count = options.datasets * sum(cells for _, cells in DATASET)
    print(f"{count} cells, {os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'way':>7} {'busy':>7} {'seconds':>8} {'against ideal':>14} {'processes':>10} {'load':>5}")
    best = ideal(count, options.scale)
    print(f"{'ideal':>7} {best.utilisation:>7.1%} {best.seconds:>8.1f} {1:>14.2f} {'':>10}", flush=True)
    with connect(None, cpus=CPUS, gpus=GPUS):
        for way in options.ways or WAYS:
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
