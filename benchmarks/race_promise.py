"""How often a race keeps the truly best method although it looks at the scores after every dataset, and what it saves.

    python benchmarks/race_promise.py --methods 9 --draws 800      # the numbers in docs/race.md
    python benchmarks/race_promise.py --methods 33 --draws 160
    python benchmarks/race_promise.py --methods 9 --choose         # other ways to spend the level, other looks

Made-up scores with a known truth, as in ``coverage.py``: the difference of two methods has a deviation of 2 points.
"covers": a truly best method is still in at the end, in the mean over all of them, with the standard error. "left": the
mean number of methods that are. "cost": the mean share of the grid's cells that are measured. "whole": the verdict on
all cells, without a race.

Shape legend: R draws, M methods, N datasets.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
from scipy.special import ndtr, ndtri

from benchmarks.coverage import DEVIATION, EQUAL, LEADS, Scenario, rule
from orchestrator.analysis import sign_flips
from orchestrator.analysis.comparison import LEVEL
from orchestrator.analysis.paired_tests import Floats, paired_t_tests
from orchestrator.analysis.race import Look, Race, Spending, evenly, planned_looks, race

PROMISE = (
    "normal",
    "skewed (exponential)",
    "some datasets scatter more than others",
    "spreads from 0.2 to 5 times",
)
"""The scenarios of ``coverage.EQUAL`` that are simulated. All methods are equal in truth, so each one is a best one."""
FLIPS = 10
"""From 11 datasets on, 2^10 flips instead of the engine's 2^12: the test is as exact, and four times as fast."""


def _graded(step: float) -> Scenario:
    """Each method is worse than the one before by this many points; single datasets differ by twice ``DEVIATION``."""

    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        return 2 * DEVIATION * rng.normal(size=shape) - step * np.arange(shape[1])[:, None]

    return scores


SAVING: Mapping[str, Scenario] = {
    "a lead of 3 points": LEADS["a lead of 3 points"],
    "two level on top, 3 points ahead": LEADS["two level on top, 3 points ahead"],
    "steps of 1 point, deviation 4": _graded(1.0),
    "the others lose 20 points more on 10 % of datasets": LEADS[
        "a lead of 3; the others lose 20 points more on 10 % of datasets"
    ],
}


def pocock(share: float) -> float:
    return math.log1p((math.e - 1) * share)


def squared(share: float) -> float:
    return share**2


def obrien_fleming(share: float) -> float:
    return float(2 * ndtr(ndtri(LEVEL / 2) / math.sqrt(share)) / LEVEL)


def rarer_looks(datasets: int) -> tuple[Look, ...]:
    """Return looks with a quarter more datasets from one to the next."""
    found = [datasets]
    while (n := math.floor(found[-1] / 1.25)) >= 5:
        found.append(n)
    return tuple(Look(n, 1) for n in reversed(found))


WAYS: Mapping[str, tuple[Spending, bool]] = {
    "evenly, every dataset": (evenly, False),
    "Pocock, every dataset": (pocock, False),
    "squared, every dataset": (squared, False),
    "O'Brien-Fleming, every dataset": (obrien_fleming, False),
    "evenly, rarer looks": (evenly, True),
    "squared, rarer looks": (squared, True),
}


def cells(raced: Race) -> int:
    """Return how many cells a race measured."""
    looks = (raced.measured(method) for method in range(len(raced.out_at)))
    return sum(look.datasets * look.seeds for look in looks if look is not None)


def outcome(scores_MN: Floats, way: str) -> tuple[bool, int, float]:
    """Return whether method 0 is left, how many are, and the share of the cells that were measured."""
    methods, datasets = scores_MN.shape
    if way == "whole":
        first, second = np.triu_indices(methods, 1)
        differences_PN = scores_MN[first] - scores_MN[second]
        stays_M = rule(methods, differences_PN, paired_t_tests(differences_PN))
        return bool(stays_M[0]), int(stays_M.sum()), 1.0
    spending, rarer = WAYS[way]
    looks = rarer_looks(datasets) if rarer else planned_looks(datasets, 1)
    # With one method or level methods left the race ends, as in the engine.
    raced = race(scores_MN[..., None], looks=looks, spending=spending)
    return bool(raced.beaten_by_M[0] < 0), len(raced.left), cells(raced) / scores_MN.size


def draws_of(scenario: Scenario, draws: int, methods: int, datasets: int, seed: int) -> Iterator[Floats]:
    """Yield scores, few at a time, so that they need little memory."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        yield scenario(rng, (1, methods, datasets))[0]


def outcomes(pool: ProcessPoolExecutor, scenario: Scenario, draws: int, shape: tuple[int, int], way: str) -> Floats:
    """Return :func:`outcome` of each draw."""
    scores = draws_of(scenario, draws, *shape, seed=0)
    return np.array(list(pool.map(partial(outcome, way=way), scores, chunksize=5)), dtype=float)


def covered(pool: ProcessPoolExecutor, name: str, draws: int, shape: tuple[int, int], way: str) -> tuple[float, float]:
    """Return how often a truly best method is left where all are equal, and the standard error."""
    covers_R = outcomes(pool, EQUAL[name], draws, shape, way)[:, 1] / shape[0]
    return float(covers_R.mean()), float(covers_R.std() / math.sqrt(draws))


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=240, help="for 8 datasets; half of them for 16, a quarter for 32")
    parser.add_argument("--choose", action="store_true", help="compare ways to spend the level")
    parser.add_argument("--methods", type=int, default=9)
    options = parser.parse_args()
    ways = list(WAYS) if options.choose else [next(iter(WAYS))]
    sizes, header = (8, 16, 32), "| n = 8 | n = 16 | n = 32 |\n|---|---|---|---|"
    shapes = [(options.draws * sizes[0] // n, (options.methods, n)) for n in sizes]
    print(f"{options.methods} methods; draws: {', '.join(str(draws) for draws, _ in shapes)}")
    with ProcessPoolExecutor(initializer=fewer_flips) as pool:
        print(f"\n| all equal in truth: covers {header}", flush=True)
        for name in PROMISE:
            for way in ways:
                found = [covered(pool, name, draws, shape, way) for draws, shape in shapes]
                print(f"| {name}: {way} | {' | '.join('{:.3f} ± {:.3f}'.format(*x) for x in found)} |", flush=True)
        print(f"\n| covers / left / cost {header}", flush=True)
        for name, scenario in SAVING.items():
            for way in [*ways, "whole"]:
                each = [outcomes(pool, scenario, draws, shape, way).mean(axis=0) for draws, shape in shapes]
                text = " | ".join("{:.3f} / {:.1f} / {:.2f}".format(*x) for x in each)
                print(f"| {name}: {way} | {text} |", flush=True)


if __name__ == "__main__":
    main()
