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

import heapq
import itertools
import json
import os
import random
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import command
from benchmarks.fanout import bare_tune, make_cells, on_tune
from benchmarks.race_promise import SAVING, blocks, draws_of
from orchestrator.analysis.race import race
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.cluster import connect
from orchestrator.planning.plan import LOOKS_AHEAD

GPUS = 8
CPUS = 8
CPUS_OF_A_CELL = 0.125
"""So small that CPUs never limit the cells: only GPUs are measured. Ray starts one process per CPU in advance."""

RUNNER = "benchmarks.utilisation:sleep"
DATASET = (1.0,) * 8 + (0.5,) * 5 + (0.25,) * 8
"""Shares of a GPU that the cells of one dataset take, in the order a plan has them."""

DATASETS = 16
"""Of a race."""

MEDIAN, SPREAD, SHORTEST, LONGEST = 18.0, 0.7, 5.0, 60.0

Places = Sequence[Sequence[Sequence[int]]]
"""For each place, for each of its blocks: the numbers of the cells."""
Share = Callable[[int], float]
"""``the number of a cell -> the share of a GPU that it takes``."""


def seconds_of(number: int) -> float:
    """Draw the duration of a cell on a GPU."""
    drawn = random.Random(number).lognormvariate(0.0, SPREAD)
    return min(LONGEST, max(SHORTEST, MEDIAN * drawn))


def share_of(number: int) -> float:
    return DATASET[number % len(DATASET)]


def whole_gpu(number: int) -> float:
    return 1.0


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


@dataclass(frozen=True)
class Measured:
    """The utilisation, the seconds from the first start to the last end, and the number of processes."""

    utilisation: float
    seconds: float
    processes: int


def measure(slept: Sequence[RecordedCell], count: int, share: Share, whole: bool) -> Measured:
    """Compute the utilisation up to the last wave or, if ``whole``, up to the end.

    Raises ``RuntimeError`` unless each cell finished exactly once.
    """
    if sorted(one.number for one in slept) != list(range(count)):
        raise RuntimeError("a cell was forgotten, or finished twice")
    starts, end = sorted(one.begun for one in slept), max(one.ended for one in slept)
    wave = max(sum(one.begun <= at < one.ended for one in slept) for at in starts)
    start, last = starts[0], end if whole else starts[-wave]
    busy = sum(share(one.number) * max(0.0, min(one.ended, last) - one.begun) for one in slept)
    return Measured(busy / (GPUS * (last - start)), end - start, len({one.process for one in slept}))


class Queue:
    """The blocks that have not started. When all cells of a block have ended, the next block of its place starts."""

    def __init__(self, places: Places) -> None:
        self.coming = [deque(place) for place in places]
        self.place_of = {number: p for p, place in enumerate(places) for block in place for number in block}
        self.unfinished = Counter[int]()
        self.start = [number for p in range(len(places)) for number in self._next(p)]

    def _next(self, p: int) -> Sequence[int]:
        block = self.coming[p].popleft() if self.coming[p] else ()
        self.unfinished[p] = len(block)
        return block

    def ended(self, number: int) -> Sequence[int]:
        """Note that a cell has ended; return the cells that may start now."""
        p = self.place_of[number]
        self.unfinished[p] -= 1
        return () if self.unfinished[p] else self._next(p)


def ours(places: Places, share: Share, folder: Path, looks: int = LOOKS_AHEAD) -> None:
    """Run the cells. A place that has decided goes on for ``looks`` further blocks, then waits for the others."""
    cells = make_cells(sum(len(block) for place in places for block in place))
    for first in range(0, max(map(len, places)), looks + 1):
        chosen = [place[first : first + looks + 1] for place in places]
        queue, later = Queue(chosen), [cells[n] for place in chosen for block in place[1:] for n in block]

        def on_event(event: CellEvent, queue: Queue = queue) -> list[Cell]:
            return [cells[n] for n in queue.ended(event.cell.seed)] if event.kind == "finished" else []

        def request(cell: Cell) -> Resources:
            return Resources(cpus=CPUS_OF_A_CELL, gpus=share(cell.seed))

        on_tune([cells[n] for n in queue.start], RunSettings(str(folder)), RUNNER, on_event, request, later)


def tune(places: Places, share: Share, folder: Path) -> None:
    """Run the cells of one block with Tune as its documentation shows it."""
    bare_tune(
        places[0][0],
        lambda number: sleep_and_record(number, str(folder)),
        folder,
        lambda number: {"cpu": CPUS_OF_A_CELL, "gpu": share(number)},
    )


def ideal(places: Places, share: Share, scale: float) -> list[RecordedCell]:
    """Schedule a list: as soon as a cell fits on one GPU, the first such cell in order starts."""
    queue, free, now = Queue(places), [1.0] * GPUS, 0.0
    waiting, slept, running = list(queue.start), list[RecordedCell](), list[tuple[float, int, int]]()
    while waiting or running:
        for number in list(waiting):
            fitting = [gpu for gpu in range(GPUS) if free[gpu] >= share(number)]
            if fitting:
                gpu = min(fitting, key=free.__getitem__)
                free[gpu] -= share(number)
                end = now + seconds_of(number) / scale
                heapq.heappush(running, (end, gpu, number))
                slept.append(RecordedCell(number, now, end, gpu))
                waiting.remove(number)
            if not any(free):
                break
        now, gpu, number = heapq.heappop(running)
        free[gpu] += share(number)
        waiting.extend(queue.ended(number))
    return slept


def race_blocks(places: int, methods: int) -> Places:
    """Return the cells of a race. Each block has a cell for every method that is left, on one dataset."""
    scores = draws_of(SAVING["a lead of 3 points"], places, methods, DATASETS, seed=1)
    counted = itertools.count()
    return [
        [[next(counted) for _ in block] for block in blocks(race(scores_MN[..., None]), DATASETS)]
        for scores_MN in scores
    ]


Way = Callable[[Places, Share, Path], None]
WAYS: dict[str, Way] = {"ours": ours, "tune": tune}
RACE_WAYS: dict[str, Way] = {"ours": ours, "together": partial(ours, looks=0)}


def main() -> None:
    parser = command(__doc__, scale=2.0, datasets=6, methods=12)
    parser.add_argument("--ways", nargs="+", choices=sorted({*WAYS, *RACE_WAYS}), help="all by default")
    parser.add_argument("--race", type=int, metavar="PLACES", help="run a race of so many places instead")
    options = parser.parse_args()
    if options.datasets < 2:
        parser.error("--datasets: one dataset is a single wave of cells; give two or more")
    share, ways = (whole_gpu, RACE_WAYS) if options.race else (share_of, WAYS)
    grid = [[list(range(options.datasets * len(DATASET)))]]
    places = race_blocks(options.race, options.methods) if options.race else grid
    count = sum(len(block) for place in places for block in place)
    print(f"{count} cells, {os.cpu_count()} CPUs, load before: {os.getloadavg()[0]:.1f}")
    print(f"{'way':>9} {'busy':>7} {'seconds':>8} {'against ideal':>14} {'processes':>10} {'load':>5}")
    best = measure(ideal(places, share, options.scale), count, share, whole=bool(options.race))
    print(f"{'ideal':>9} {best.utilisation:>7.1%} {best.seconds:>8.1f} {1:>14.2f}", flush=True)
    with connect(None, cpus=CPUS, gpus=GPUS):
        for way in options.ways or ways:
            with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
                Path(name, "scale").write_text(str(options.scale))
                ways[way](places, share, Path(name))
                lines = (line for path in Path(name).glob("slept-*") for line in path.read_text().splitlines())
                slept = [RecordedCell(*json.loads(line)) for line in lines]
            got = measure(slept, count, share, whole=bool(options.race))
            print(
                f"{way:>9} {got.utilisation:>7.1%} {got.seconds:>8.1f} {got.seconds / best.seconds:>14.2f} "
                f"{got.processes:>10} {os.getloadavg()[0]:>5.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
