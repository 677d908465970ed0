"""The share of the time in which 8 simulated GPUs have cells with realistic durations. All of the time is the limit.

    python benchmarks/utilisation.py                         # about eight minutes
    python benchmarks/utilisation.py --race 6                # a race of six places; about ten minutes

A cell sleeps. Durations are log-normal with a median of 18 s, limited to 5 to 60 s, and divided by --scale. As in a
few-shot grid, each dataset has cells that take a whole GPU, then a half, then a quarter, so the shares alternate. The
time counts to the start of the last wave. A wave is as many cells as ever ran at a time; in the last one, no scheduler
can fill every slot. Compared:
    ours      run_cells
    tune      Tune as its documentation shows it: tune.grid_search, reuse_actors, resources as a function of the cell

At each place of a race, 12 methods are measured on 16 datasets, and one method leads by 3 points. A cell takes a whole
GPU. The time counts to the end of the last cell. Compared:
    ours      a place that has decided goes on, up to ``LOOKS_AHEAD`` looks; then ``run_cells`` starts again
    together  ``run_cells`` for each block: no place goes on before all have decided

Starting a process takes seconds of CPU time, which --scale does not divide, so leave the machine's other CPUs idle.
"""

import itertools
import os
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import command, print_head, print_row
from benchmarks.fanout import bare_tune, make_cells, on_tune
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.cluster import connect

GPUS = CPUS = 8
CPUS_OF_A_CELL = 0.125
"""So small that CPUs never limit the cells: only GPUs are measured. Ray starts one process per CPU in advance."""
DATASET = (1.0,) * 8 + (0.5,) * 5 + (0.25,) * 8
"""Shares of a GPU that the cells of one dataset take, in the order a plan has them."""
MEDIAN, SPREAD, SHORTEST, LONGEST = 18.0, 0.7, 5.0, 60.0

Places = Sequence[Sequence[Sequence[int]]]
"""For each place, for each of its blocks: the numbers of the cells."""
Shares = Sequence[float]
"""The shares of a GPU that cells take; they repeat."""


def seconds_of(number: int) -> float:
    """Draw the duration of a cell on a GPU."""
    return min(LONGEST, max(SHORTEST, MEDIAN * random.Random(number).lognormvariate(0.0, SPREAD)))


def sleep_and_record(number: int, folder: str) -> None:
    """Sleep as long as a cell takes, and record it in a file of this process."""
    begun = time.time()
    time.sleep(seconds_of(number) / float(Path(folder, "scale").read_text()))
    with open(Path(folder, f"slept-{os.getpid()}"), "a") as stream:
        stream.write(f"{number} {begun} {time.time()}\n")


def sleep(cell: Cell, settings: RunSettings) -> CellEvent:
    """Run a cell: sleep."""
    sleep_and_record(cell.seed, settings.store_url)
    return CellEvent(cell, "finished")


def measure(slept: NDArray[np.float64], cells: int, shares: Shares, whole: bool) -> tuple[float, float]:
    """Return the share of the GPUs that was busy up to the last wave or, if ``whole``, up to the end; and the seconds.

    ``slept``: number, start and end of each cell. Raises ``RuntimeError`` unless each cell finished exactly once.
    """
    number_N, begun_N, ended_N = slept[slept[:, 1].argsort()].T
    if sorted(number_N) != list(range(cells)):
        raise RuntimeError("a cell was forgotten, or finished twice")
    wave = max(int(((begun_N <= at) & (at < ended_N)).sum()) for at in begun_N)
    last = float(ended_N.max() if whole else begun_N[-wave])
    share_N = np.resize(shares, cells)[number_N.astype(int)]
    busy = float((share_N * (np.minimum(ended_N, last) - begun_N).clip(min=0)).sum())
    return busy / (GPUS * (last - begun_N[0])), float(ended_N.max() - begun_N[0])


class Queue:
    """The order of the cells: when all cells of a block have ended, those of the next block of its place may start."""

    def __init__(self, places: Places) -> None:
        self.start = [number for place in places for number in place[0]]
        self.block_of = {number: (place, b) for place in places for b, block in enumerate(place) for number in block}
        self.unfinished = {block[0]: len(block) for place in places for block in place}

    def ended(self, number: int) -> Sequence[int]:
        """Note that a cell has ended; return the cells that may start now."""
        place, b = self.block_of[number]
        self.unfinished[place[b][0]] -= 1
        return () if self.unfinished[place[b][0]] or b + 1 == len(place) else place[b + 1]


def ours(places: Places, shares: Shares, folder: Path, looks: int = 0) -> None:
    """Run the cells. A place that has decided goes on for ``looks`` further blocks, then waits for the others."""
    cells = make_cells(sum(len(block) for place in places for block in place))
    for first in range(0, max(map(len, places)), looks + 1):
        chosen = [place[first : first + looks + 1] for place in places if len(place) > first]
        queue, later = Queue(chosen), [cells[n] for place in chosen for block in place[1:] for n in block]

        def on_event(event: CellEvent, queue: Queue = queue) -> list[Cell]:
            return [cells[n] for n in queue.ended(event.cell.seed)] if event.kind == "finished" else []

        def request(cell: Cell) -> Resources:
            return Resources(cpus=CPUS_OF_A_CELL, gpus=shares[cell.seed % len(shares)])

        settings, runner = RunSettings(str(folder)), "benchmarks.utilisation:sleep"
        on_tune([cells[n] for n in queue.start], settings, runner, on_event, request, later)


def tune(places: Places, shares: Shares, folder: Path) -> None:
    """Run the cells of one block with Tune as its documentation shows it."""
    work, (block,) = partial(sleep_and_record, folder=str(folder)), places[0]
    bare_tune(block, work, folder, lambda number: {"cpu": CPUS_OF_A_CELL, "gpu": shares[number % len(shares)]})


def race_blocks(places: int, methods: int) -> Places:
    """Return the cells of a race on 16 datasets. Each block has a cell for every method that is left."""
    from benchmarks.race import SAVING, blocks, by_race, draws_of  # here, because every worker imports this module

    scores, counted = draws_of(SAVING["a lead of 3 points"], places, methods, datasets=16, seed=1), itertools.count()
    raced = (blocks(by_race(scores_MD[..., None]), datasets=16) for scores_MD in scores)
    return [[[next(counted) for _ in block] for block in place] for place in raced]


def main() -> None:
    from orchestrator.planning.plan import LOOKS_AHEAD

    parser = command(__doc__, scale=2.0, datasets=6, methods=12)
    parser.add_argument("--race", type=int, metavar="PLACES", help="run a race of so many places instead")
    options = parser.parse_args()
    if options.datasets < 2:
        parser.error("--datasets: one dataset is a single wave of cells; give two or more")
    shares: Shares = DATASET
    places: Places = [[range(options.datasets * len(DATASET))]]
    ways: dict[str, Callable[[Places, Shares, Path], None]] = {"ours": ours, "tune": tune}
    if options.race:
        shares, places = (1.0,), race_blocks(options.race, options.methods)
        ways = {"ours": partial(ours, looks=LOOKS_AHEAD), "together": ours}
    cells = sum(len(block) for place in places for block in place)
    print_head(f"{cells} cells, {os.cpu_count()} CPUs", ["busy", "seconds"])
    with connect(None, cpus=CPUS, gpus=GPUS):
        for way, run in ways.items():
            with tempfile.TemporaryDirectory(prefix="bolt-bench-") as name:
                Path(name, "scale").write_text(str(options.scale))
                run(places, shares, Path(name))
                slept = np.concatenate([np.loadtxt(path, ndmin=2) for path in Path(name).glob("slept-*")])
                busy, seconds = measure(slept, cells, shares, whole=bool(options.race))
                print_row(way, [f"{busy:.1%}", f"{seconds:.1f}"])


if __name__ == "__main__":
    main()
