"""What a race saves and what it loses, on complete results and on made-up scores. No cell is run.

    python benchmarks/race.py                                    # the paper's and the field's printed tables
    python benchmarks/race.py --grid leaderboard --store runs    # a grid that is measured as a whole
    python benchmarks/race.py --drawn 9 --draws 800              # made-up scores of 9 methods

Complete results: every place (track, domain, backbone, k) is raced in 200 random orders of its datasets, by

- race: ``orchestrator.analysis.race``;
- F-race (Birattari and others, GECCO 2002): after each dataset from the fifth on, Friedman's test at 5 %, and where it
  finds a difference, Conover's comparisons with the first method; of two methods, Wilcoxon's signed-rank test;
- halving: the better half goes on, with twice the datasets, until the last rung has all of them and names one method;
- subset: all methods on as many datasets as cost what the race costs, then the verdict.

"best in": the method that the verdict on everything names first is among those that the procedure names. "same": both
name the same methods. "left": how many. "cells", "operations": the measured share of the cells, and of their counted
operations without artifacts.

Made-up scores: the truth is known, as in ``coverage.py``. "covers" is how often a truly best method is left: the mean
over all truly best methods, with its standard error. "cost" is the mean share of the cells that is measured. "whole" is
the verdict on all cells, without a race.

Shape legend: R draws, M methods, D datasets, S seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.common import command, print_head, print_row
from benchmarks.coverage import EQUAL, LEADS, Scenario, ahead, best_sets
from orchestrator.analysis import sign_flips
from orchestrator.analysis.best_set import MIN_DATASETS, mean_over_seeds
from orchestrator.analysis.paired_tests import Floats, Ints
from orchestrator.analysis.race import planned_looks, race
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import cell_gflops
from orchestrator.report.paper.field import field_numbers
from orchestrator.report.paper.published import published_accuracy
from orchestrator.sharing.grid_listing import expand_grid
from orchestrator.store import Store


class Place(NamedTuple):
    """Complete results: accuracies in per cent, operations of a cell (all 1 if none are known), and the verdict."""

    name: str
    scores_MDS: Floats
    gflop_MD: Floats
    whole: Ints


class Outcome(NamedTuple):
    """The methods that a procedure names; how many datasets it measured of each method, and under how many seeds."""

    named: Ints
    datasets_M: Ints
    seeds_M: Ints

    @property
    def cells(self) -> int:
        return int((self.datasets_M * self.seeds_M).sum())


Procedure = Callable[[Floats], Outcome]


def verdict(scores_MDS: Floats) -> Ints:
    """Return the best set, the first method first."""
    means_MD = mean_over_seeds(scores_MDS)
    left = np.flatnonzero(best_sets(means_MD[None])[0])
    return left[np.argsort(-means_MD[left].mean(axis=1), kind="stable")]


def by_race(scores_MDS: Floats) -> Outcome:
    found = race(scores_MDS)
    looks = [look for method in range(len(scores_MDS)) if (look := found.measured(method)) is not None]
    return Outcome(found.left, np.array([look.datasets for look in looks]), np.array([look.seeds for look in looks]))


def by_f_race(scores_MDS: Floats) -> Outcome:
    means_MD = scores_MDS.mean(axis=2)
    methods, datasets = means_MD.shape
    measured = np.full(methods, datasets)
    left = np.arange(methods)
    for n in range(MIN_DATASETS, datasets + 1):
        out = _conover(means_MD[left, :n])
        measured[left[out]] = n
        left = left[~out]
        if len(left) == 1:
            measured[left] = n
            break
    return Outcome(left, measured, np.full(methods, scores_MDS.shape[2]))


def _conover(means_MN: Floats) -> NDArray[np.bool_]:
    """Mark the methods that Friedman's test and Conover's comparisons find worse than the first one."""
    k, n = means_MN.shape
    if k == 2:
        differences = means_MN[0] - means_MN[1]
        worse = int(np.median(differences) > 0)
        differs = differences.any() and stats.wilcoxon(differences).pvalue < 0.05
        return np.asarray(np.arange(2) == (worse if differs else -1))
    ranks_MN = stats.rankdata(-means_MN, axis=0)
    sums_M, spread = ranks_MN.sum(axis=1), float((ranks_MN**2).sum()) - n * k * (k + 1) ** 2 / 4
    statistic, p = stats.friedmanchisquare(*means_MN) if spread else (0.0, 1.0)
    if p >= 0.05:
        return np.zeros(k, dtype=bool)
    error = math.sqrt(max(2 * n * (1 - statistic / (n * (k - 1))) * spread / ((k - 1) * (n - 1)), 0.0))
    return np.asarray(sums_M - sums_M.min() > error * stats.t.ppf(0.975, (k - 1) * (n - 1)))


def by_halving(scores_MDS: Floats) -> Outcome:
    means_MD = scores_MDS.mean(axis=2)
    methods, datasets = means_MD.shape
    measured, left, rungs = np.full(methods, datasets), np.arange(methods), math.ceil(math.log2(methods))
    for rung in range(rungs):
        n = max(round(datasets * 2.0 ** (rung + 1 - rungs)), 1)
        order = left[np.argsort(-means_MD[left, :n].mean(axis=1), kind="stable")]
        kept = math.ceil(len(left) / 2)
        measured[order[kept:]] = n
        left = order[:kept]
    return Outcome(left, measured, np.full(methods, scores_MDS.shape[2]))


def by_subset(scores_MDS: Floats, share: float = 1.0) -> Outcome:
    methods, datasets, seeds = scores_MDS.shape
    n = min(max(round(share * datasets), 1), datasets)
    return Outcome(verdict(scores_MDS[:, :n]), np.full(methods, n), np.full(methods, seeds))


def replay(place: Place, procedure: Procedure, order: int) -> tuple[float, ...]:
    """Return what the docstring of this file lists, for one random order."""
    whole = place.whole
    drawn = np.random.default_rng(order).permutation(place.scores_MDS.shape[1])
    outcome = procedure(place.scores_MDS[:, drawn])
    gflop = sum(own[drawn][:n].sum() * s for own, n, s in zip(place.gflop_MD, *outcome[1:], strict=True))
    seeds = place.scores_MDS.shape[2]
    return (
        float(whole[0] in outcome.named),
        float(set(outcome.named) == set(whole)),
        float(len(outcome.named)),
        outcome.cells / place.scores_MDS.size,
        float(gflop) / (float(place.gflop_MD.sum()) * seeds),
    )


Score = tuple[str, str, tuple[str, int], float, float]
"""A place, a method, a dataset with a seed, the accuracy, and the operations of the cell; 0 if they are not known."""


def places_of(scores: Iterable[Score], least_methods: int = 2, least_datasets: int = MIN_DATASETS + 1) -> list[Place]:
    """Return the places, with the methods that have all datasets and seeds, unless they are too few."""
    found: dict[str, dict[str, dict[tuple[str, int], tuple[float, float]]]] = defaultdict(dict)
    for place, method, key, accuracy, gflop in scores:
        found[place].setdefault(method, {})[key] = (accuracy, gflop)
    places = []
    for place, of_methods in found.items():
        keys = sorted(set.union(*map(set, of_methods.values())))
        datasets, seeds = sorted({dataset for dataset, _ in keys}), sorted({seed for _, seed in keys})
        complete = [own for own in of_methods.values() if len(own) == len(datasets) * len(seeds)]
        both = np.array([[[own[d, s] for s in seeds] for d in datasets] for own in complete])
        if len(complete) >= least_methods and len(datasets) >= least_datasets:
            gflop_MD = both[:, :, 0, 1] if both[..., 1].any() else np.ones(both.shape[:2])
            places.append(Place(place, both[..., 0], gflop_MD, verdict(both[..., 0])))
    return places


def scores_of(cells: Iterable[tuple[Cell, str, float | None]], catalog: Catalog) -> Iterator[Score]:
    """Yield the scores of cells with their labels and accuracies."""
    for cell, label, accuracy in cells:
        if accuracy is not None and cell.shots:
            place = f"{cell.track} {cell.domain} {cell.backbone.name} {cell.shots}"
            yield place, label, (cell.dataset.name, cell.seed), accuracy, cell_gflops(cell, catalog)


def printed_places() -> list[Place]:
    """Return the paper's few-shot tables, with the operations of the grid that measures them."""
    grid, catalog = expand_grid("published", RunSettings(store_url="runs"))

    def printed(cell: Cell) -> float | None:
        backbone, dataset = catalog.published_names(cell.backbone.name, cell.dataset.name)
        return published_accuracy(cell.track, backbone, cell.domain, cell.shots, cell.method.name, dataset)

    return places_of(scores_of(((cell, cell.method.name, printed(cell)) for cell in grid.cells), catalog))


def field_places() -> list[Place]:
    """Return the literature's tables of five methods and eight datasets or more; their operations are not known."""
    scores = (
        (f"{n.source} {n.setting} {n.metric} {n.backbone} {n.k}", n.method, (n.dataset, 1), n.accuracy, 0.0)
        for n in field_numbers()
        if n.dataset.startswith("eleven_")
    )
    return places_of(scores, least_methods=5, least_datasets=8)


def measured_places(grid_name: str, store: str) -> list[Place]:
    """Return the places of a measured grid."""
    grid, catalog = expand_grid(grid_name, RunSettings(store_url=store))
    done, _, _ = Store(store).read_outcomes([cell.id for cell in grid.cells])
    rows = ((result.cell, grid.label(result.cell), result.evaluations[0].accuracy) for result in done)
    return places_of(scores_of(rows, catalog))


def compare(pool: ProcessPoolExecutor, title: str, places: list[Place], orders: int) -> None:
    """Print the means over places and orders of each procedure, and the median of the race's cost."""
    sizes = sorted({place.scores_MDS.shape for place in places})
    print(f"\n{len(places)} places of methods x datasets x seeds {', '.join(map(str, sizes))}; {orders} orders")
    print_head(title, ["best in", "same", "left", "cells", "operations", "median of operations"])
    found: dict[str, list[Floats]] = defaultdict(list)
    for place in places:

        def outcomes(procedure: Procedure, place: Place = place) -> Floats:
            return np.array(list(pool.map(partial(replay, place, procedure), range(orders), chunksize=20)))

        for way, procedure in (("race", by_race), ("F-race", by_f_race), ("halving", by_halving)):
            found[way].append(outcomes(procedure))
        found["subset"].append(outcomes(partial(by_subset, share=float(found["race"][-1][:, 4].mean()))))
    for name, of_places in found.items():
        each = np.concatenate(of_places)
        means = (f"{x:.3f}" if i < 2 else f"{x:.2f}" for i, x in enumerate(each.mean(axis=0)))
        print_row(name, [*means, f"{np.median(each[:, 4]):.2f}"])


PROMISE = ("normal", "skewed (exponential)", "some datasets scatter more than others", "spreads from 0.2 to 5 times")
"""The scenarios of ``coverage.EQUAL`` that are raced. All methods are equal in truth, so each one is a best one."""
SAVING: Mapping[str, Scenario] = {
    **{name: scenario for name, scenario in LEADS.items() if name != "a lead of 5 points"},
    "steps of 1 point, deviation 4": lambda rng, shape: 2 * EQUAL["normal"](rng, shape) - np.arange(shape[1])[:, None],
}


def draws_of(scenario: Scenario, draws: int, methods: int, datasets: int, seed: int) -> Iterator[Floats]:
    """Yield scores (M, D), few at a time, so that they need little memory."""
    rng = np.random.default_rng(seed)
    for _ in range(draws):
        yield scenario(rng, (1, methods, datasets))[0]


def left_and_cost(procedure: Procedure, best: int, scores_MD: Floats) -> tuple[float, float, float]:
    """Return the share of the first ``best`` methods that is left, how many are left, and the share of the cells."""
    outcome = procedure(scores_MD[..., None])
    return float((outcome.named < best).sum()) / best, float(len(outcome.named)), outcome.cells / scores_MD.size


def blocks(outcome: Outcome, datasets: int) -> list[list[int]]:
    """Return the method of each cell that a race under one seed measured, for each of its blocks."""
    found, before = list[list[int]](), 0
    for look in planned_looks(datasets, 1):
        if running := np.flatnonzero(outcome.datasets_M >= look.datasets).tolist():
            found.append(running * (look.datasets - before))
        before = look.datasets
    return found


def fewer_flips() -> None:
    """From 11 datasets on, test with 2^10 flips instead of 2^12: the test is as exact, and four times as fast."""
    sign_flips.ALL_FLIPS_UP_TO = 10


def compare_drawn(pool: ProcessPoolExecutor, methods: int, draws: int) -> None:
    """Print how often a race keeps the truly best methods, and what it saves; ``draws`` are with 8 datasets."""
    sizes = {datasets: draws * 8 // datasets for datasets in (8, 16, 32)}
    head = [f"n = {datasets}, {count} draws" for datasets, count in sizes.items()]

    def found(scenario: Scenario, procedure: Procedure, best: int, more: int = 0) -> Iterator[Floats]:
        """Yield, for each number of datasets, what is found in its draws."""
        for datasets, count in sizes.items():
            scores = draws_of(scenario, count, methods + more, datasets, seed=0)
            yield np.array(list(pool.map(partial(left_and_cost, procedure, best), scores, chunksize=5)))

    def print_covers(name: str, scenario: Scenario, procedure: Procedure, more: int = 0) -> None:
        left = (found_R3[:, 0] for found_R3 in found(scenario, procedure, methods, more))
        print_row(name, (f"{own_R.mean():.3f} ± {own_R.std() / math.sqrt(len(own_R)):.3f}" for own_R in left))

    print_head(f"{methods} methods, all equal in truth: covers", head)
    for name in PROMISE:
        print_covers(name, EQUAL[name], by_race)
    for way, procedure in (("F-race", by_f_race), ("halving", by_halving)):
        print_covers(f"normal: {way}", EQUAL["normal"], procedure)
    print_head("the same, and four more methods are 5 points worse: covers", head)
    for way, procedure in (("race", by_race), ("F-race", by_f_race), ("halving", by_halving)):
        print_covers(way, ahead(5.0, leaders=methods), procedure, more=4)
    print_head("covers / left / cost", head)
    for name, scenario in SAVING.items():
        for way, procedure in (("race", by_race), ("whole", by_subset)):
            means = (found_R3.mean(axis=0) for found_R3 in found(scenario, procedure, best=1))
            print_row(f"{name}: {way}", ("{:.3f} / {:.1f} / {:.2f}".format(*own) for own in means))


def main() -> None:
    parser = command(__doc__, orders=200, draws=240)
    parser.add_argument("--grid", help="a measured grid instead of the printed tables")
    parser.add_argument("--store", default="runs")
    parser.add_argument("--drawn", type=int, metavar="METHODS", help="made-up scores instead of the printed tables")
    options = parser.parse_args()
    with ProcessPoolExecutor(initializer=fewer_flips if options.drawn else None) as pool:
        if options.drawn:
            compare_drawn(pool, options.drawn, options.draws)
        elif options.grid:
            compare(pool, options.grid, measured_places(options.grid, options.store), options.orders)
        else:
            compare(pool, "the paper's few-shot tables", printed_places(), options.orders)
            compare(pool, "the field's tables", field_places(), options.orders)


if __name__ == "__main__":
    main()
