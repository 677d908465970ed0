"""Measure how often a race keeps the truly best method, although it looks after every dataset, and what it saves.

    python benchmarks/race_promise.py --methods 9 --draws 800      # the numbers in docs/race.md
    python benchmarks/race_promise.py --methods 33 --draws 160

The scores are made up, so the truth is known, as in ``coverage.py``. The difference of two methods has a deviation of 2
points. "covers" is how often a truly best method is left at the end: the mean over all truly best methods, with its
standard error. "left" is the mean number of methods that are left. "cost" is the mean share of the grid's cells that
are measured. "whole" is the verdict on all cells, without a race.

Shape legend: R draws, M methods, N datasets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from benchmarks.common import command, print_head, print_row
from benchmarks.coverage import DEVIATION, EQUAL, LEADS, Scenario, best_sets
from orchestrator.analysis import sign_flips
from orchestrator.analysis.paired_tests import Floats
from orchestrator.analysis.race import Race, planned_looks, race

PROMISE = (
    "normal",
    "skewed (exponential)",
    "some datasets scatter more than others",
    "spreads from 0.2 to 5 times",
)
"""The scenarios of ``coverage.EQUAL`` that are simulated. All methods are equal in truth, so each one is a best one."""
FLIPS = 10
"""From 11 datasets on, 2^10 flips instead of the engine's 2^12: the test is as exact, and four times as fast."""


def _graded(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw scores in which each method is a point worse than the one before, with twice the usual deviation."""
    return 2 * DEVIATION * rng.normal(size=shape) - np.arange(shape[1])[:, None]


SAVING: Mapping[str, Scenario] = {
    **{name: scenario for name, scenario in LEADS.items() if name != "a lead of 5 points"},
    "steps of 1 point, deviation 4": _graded,
}

Outcome = tuple[bool, int, float]
"""Whether method 0 is left, how many methods are left, and the share of the cells that were measured."""


def cells(raced: Race) -> int:
    """Return how many cells a race measured."""
    looks = (raced.measured(method) for method in range(len(raced.out_at)))
    return sum(look.datasets * look.seeds for look in looks if look is not None)


def by_race(scores_MN: Floats) -> Outcome:
    # With one method or level methods left the race ends, as in the engine.
    raced = race(scores_MN[..., None])
    return bool(raced.beaten_by_M[0] < 0), len(raced.left), cells(raced) / scores_MN.size


def by_verdict(scores_MN: Floats) -> Outcome:
    (stays_M,) = best_sets(scores_MN[None])
    return bool(stays_M[0]), int(stays_M.sum()), 1.0


def draws_of(scenario: Scenario, draws: int, methods: int, datasets: int, seed: int) -> Iterator[Floats]:
    """Yield scores, few at a time, so that they need little memory."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        yield scenario(rng, (1, methods, datasets))[0]


def blocks(raced: Race, datasets: int) -> list[list[int]]:
    """Return the method of each cell that a race measured, for each of its blocks."""
    found, before = [], 0
    for look in planned_looks(datasets, 1):
        ends = [raced.measured(method) for method in range(len(raced.out_at))]
        running = [method for method, end in enumerate(ends) if end is not None and end.datasets >= look.datasets]
        if not running:
            break
        found.append(running * (look.datasets - before))
        before = look.datasets
    return found


def fewer_flips() -> None:
    """Test with fewer flips in this process."""
    sign_flips.ALL_FLIPS_UP_TO = FLIPS


def main() -> None:
    options = command(__doc__, methods=9, draws=240).parse_args()  # with 8 datasets; half with 16, a quarter with 32
    sizes = {datasets: options.draws * 8 // datasets for datasets in (8, 16, 32)}
    head = [f"n = {datasets}, {draws} draws" for datasets, draws in sizes.items()]
    with ProcessPoolExecutor(initializer=fewer_flips) as pool:

        def outcomes(scenario: Scenario, way: Callable[[Floats], Outcome]) -> list[Floats]:
            """Return, for each number of datasets, the outcomes of its draws."""
            drawn = (draws_of(scenario, draws, options.methods, n, seed=0) for n, draws in sizes.items())
            return [np.array(list(pool.map(way, scores, chunksize=5)), dtype=float) for scores in drawn]

        print_head(f"{options.methods} methods, all equal in truth: covers", head)
        for name in PROMISE:
            covers = [found[:, 1] / options.methods for found in outcomes(EQUAL[name], by_race)]
            print_row(name, (f"{own_R.mean():.3f} ± {own_R.std() / math.sqrt(len(own_R)):.3f}" for own_R in covers))
        print_head("covers / left / cost", head)
        for name, scenario in SAVING.items():
            for way, outcome in (("race", by_race), ("whole", by_verdict)):
                means = (found.mean(axis=0) for found in outcomes(scenario, outcome))
                print_row(f"{name}: {way}", ("{:.3f} / {:.1f} / {:.2f}".format(*own) for own in means))


if __name__ == "__main__":
    main()
