"""What a race would have saved on complete results, and what it would have lost. No cell is run again.

    python benchmarks/race.py                                    # the paper's and the field's printed tables
    python benchmarks/race.py --grid leaderboard --store runs    # a grid that is measured as a whole
    python benchmarks/race.py --equal 5                          # made-up scores: five equal methods, four worse

Every place (track, domain, backbone, k) is raced in 200 random orders of its datasets, by four procedures:

- race: ``orchestrator.analysis.race``;
- F-race (Birattari and others, GECCO 2002): after each dataset from the fifth on, Friedman's test at 5 %, and where it
  finds a difference, Conover's comparisons with the first method; of two methods, Wilcoxon's signed-rank test;
- halving: the better half goes on, with twice the datasets, until the last rung has all of them and names one method;
- subset: all methods on as many datasets as cost what the race costs, then the verdict.

"best in": the method that the verdict on everything names first is among those that the procedure names. "same": both
name the same methods. "left": how many. "cells", "operations": the share of the place's cells, and of their counted
operations, that is measured; artifacts are not counted.

Shape legend: M methods, D datasets, S seeds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.common import command, print_head, print_row
from benchmarks.coverage import DEVIATION
from orchestrator.analysis.best_set import MIN_DATASETS, compare_datasets, exclusion_test, mean_over_seeds
from orchestrator.analysis.comparison import eliminate
from orchestrator.analysis.paired_tests import Floats, Ints
from orchestrator.analysis.race import race
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import cell_gflops
from orchestrator.report.paper.field import field_numbers
from orchestrator.report.paper.published import published_accuracy
from orchestrator.sharing.grid_listing import expand_grid
from orchestrator.store import Store


@dataclass(frozen=True)
class Place:
    """Complete results of one place.

    Attributes:
        scores_MDS: accuracies in percent.
        gflop_MD: operations of one cell of each method and dataset; all 1 if none are known or counted.
    """

    name: str
    scores_MDS: Floats
    gflop_MD: Floats

    @cached_property
    def whole(self) -> Ints:
        """The verdict on everything."""
        return verdict(self.scores_MDS)


Outcome = tuple[Ints, Ints, Ints]
"""The methods that a procedure names; how many datasets it measured of each method, and under how many seeds."""


def verdict(scores_MDS: Floats) -> Ints:
    """Return the best set, the first method first."""
    means_MD = mean_over_seeds(scores_MDS)
    first, second = np.triu_indices(len(means_MD), 1)
    differences_PD = means_MD[first] - means_MD[second]
    test = exclusion_test(len(means_MD), differences_PD, compare_datasets(differences_PD))
    left = np.flatnonzero(eliminate(len(means_MD), test)[0] < 0)
    return left[np.argsort(-means_MD[left].mean(axis=1), kind="stable")]


def by_race(scores_MDS: Floats) -> Outcome:
    raced = race(scores_MDS)
    looks = [look for method in range(len(scores_MDS)) if (look := raced.measured(method)) is not None]
    return raced.left, np.array([look.datasets for look in looks]), np.array([look.seeds for look in looks])


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
    return left, measured, np.full(methods, scores_MDS.shape[2])


def _conover(means_MN: Floats) -> NDArray[np.bool_]:
    """Mark the methods that Friedman's test and Conover's comparisons find worse than the first one."""
    k, n = means_MN.shape
    if k == 2:
        differences = means_MN[0] - means_MN[1]
        worse = int(np.median(differences) > 0)
        differs = differences.any() and stats.wilcoxon(differences).pvalue < 0.05
        return np.arange(2) == (worse if differs else -1)
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
    return left, measured, np.full(methods, scores_MDS.shape[2])


def by_subset(scores_MDS: Floats, share: float) -> Outcome:
    methods, datasets, seeds = scores_MDS.shape
    n = min(max(round(share * datasets), 1), datasets)
    return verdict(scores_MDS[:, :n]), np.full(methods, n), np.full(methods, seeds)


def replay(place: Place, procedure: Callable[[Floats], Outcome], order: int) -> tuple[float, ...]:
    """Return what the docstring of this file lists, for one random order."""
    whole = place.whole
    drawn = np.random.default_rng(order).permutation(place.scores_MDS.shape[1])
    named, datasets_M, seeds_M = procedure(place.scores_MDS[:, drawn])
    gflop = sum(own[drawn][:n].sum() * s for own, n, s in zip(place.gflop_MD, datasets_M, seeds_M, strict=True))
    seeds = place.scores_MDS.shape[2]
    return (
        float(whole[0] in named),
        float(set(named) == set(whole)),
        float(len(named)),
        float((datasets_M * seeds_M).sum()) / place.scores_MDS.size,
        float(gflop) / (float(place.gflop_MD.sum()) * seeds),
    )


def places_of(cells: Iterable[tuple[Cell, str, float | None]], catalog: Catalog) -> list[Place]:
    """Return the places of cells with their labels and accuracies whose every method has all datasets and seeds."""
    found: dict[tuple[object, ...], dict[str, dict[tuple[str, int], tuple[float, float]]]] = defaultdict(dict)
    for cell, label, accuracy in cells:
        if accuracy is not None and cell.shots:
            place = (cell.track, cell.domain, cell.backbone.name, cell.shots)
            own = found[place].setdefault(label, {})
            own[cell.dataset.name, cell.seed] = (accuracy, cell_gflops(cell, catalog))
    places = []
    for place, scores in found.items():
        keys = sorted(set.union(*map(set, scores.values())))
        datasets, seeds = (sorted({key[axis] for key in keys}) for axis in (0, 1))
        complete = [own for own in scores.values() if len(own) == len(datasets) * len(seeds)]
        both = np.array([[[own[d, s] for s in seeds] for d in datasets] for own in complete])
        if len(complete) > 1 and len(datasets) > MIN_DATASETS:
            gflop_MD = both[:, :, 0, 1] if both[..., 1].any() else np.ones(both.shape[:2])
            places.append(Place(" ".join(map(str, place)), both[..., 0], gflop_MD))
    return places


def printed_places() -> list[Place]:
    """Return the paper's few-shot tables, with the operations of the grid that measures them."""
    grid, catalog = expand_grid("published", RunSettings(store_url="runs"))

    def printed(cell: Cell) -> float | None:
        backbone, dataset = catalog.published_names(cell.backbone.name, cell.dataset.name)
        return published_accuracy(cell.track, backbone, cell.domain, cell.shots, cell.method.name, dataset)

    return places_of(((cell, cell.method.name, printed(cell)) for cell in grid.cells), catalog)


def field_places() -> list[Place]:
    """Return the literature's tables of five methods and eight datasets or more; their operations are not known."""
    tables: dict[tuple[str, ...], dict[str, dict[str, float]]] = defaultdict(dict)
    for number in field_numbers():
        table = (number.source, number.setting, number.metric, number.backbone, str(number.k))
        if number.dataset.startswith("eleven_"):
            tables[table].setdefault(number.method, {})[number.dataset] = number.accuracy
    places = []
    for table, scores in tables.items():
        names = sorted(set.union(*map(set, scores.values())))
        complete = np.array([[own[name] for name in names] for own in scores.values() if len(own) == len(names)])
        if len(complete) >= 5 and len(names) >= 8:
            places.append(Place(" ".join(table), complete[..., None], np.ones(complete.shape)))
    return places


def measured_places(grid_name: str, store: str) -> list[Place]:
    """Return the places of a measured grid."""
    grid, catalog = expand_grid(grid_name, RunSettings(store_url=store))
    done, _, _ = Store(store).read_outcomes([cell.id for cell in grid.cells])
    rows = ((result.cell, grid.label(result.cell), result.evaluations[0].accuracy) for result in done)
    return places_of(rows, catalog)


def compare(pool: ProcessPoolExecutor, title: str, places: list[Place], orders: int) -> None:
    """Print the means over places and orders of each procedure, and the median of the race's cost."""
    sizes = sorted({place.scores_MDS.shape for place in places})
    print(f"\n{len(places)} places of methods x datasets x seeds {', '.join(map(str, sizes))}; {orders} orders")
    print_head(title, ["best in", "same", "left", "cells", "operations", "median of operations"])
    raced: dict[str, Floats] = {}
    procedures: Mapping[str, Callable[[Place], Callable[[Floats], Outcome]]] = {
        "race": lambda place: by_race,
        "F-race": lambda place: by_f_race,
        "halving": lambda place: by_halving,
        "subset": lambda place: partial(by_subset, share=float(raced[place.name][:, 4].mean())),
    }
    for name, procedure in procedures.items():
        found = []
        for place in places:
            assert len(place.whole)  # computed here, so that the processes get it
            job = partial(replay, place, procedure(place))
            found.append(np.array(list(pool.map(job, range(orders), chunksize=20))))
            if name == "race":
                raced[place.name] = found[-1]
        each = np.concatenate(found)
        means = (f"{x:.3f}" if i < 2 else f"{x:.2f}" for i, x in enumerate(each.mean(axis=0)))
        print_row(name, [*means, f"{np.median(each[:, 4]):.2f}"])
        if name == "race":
            worst = min(zip(found, places, strict=True), key=lambda both: both[0][:, 0].mean())
            print_row(f"(lowest: {worst[1].name})", [f"{worst[0][:, 0].mean():.3f}", *[""] * 5])


def left_when_equal(methods: int, datasets: int, draws: int) -> None:
    """Print how often each procedure keeps one of the methods that are the best, with and without 4 that are worse."""
    print(f"{methods} methods are equally good, {datasets} datasets, {draws} draws: how often one of them is left")
    print_head("", ["none is worse", "four are 5 points worse"])
    scores = DEVIATION * np.random.default_rng(0).normal(size=(draws, methods + 4, datasets, 1))
    scores[:, methods:] -= 5
    for name, procedure in (("race", by_race), ("F-race", by_f_race), ("halving", by_halving)):
        columns = []
        for own in (scores[:, :methods], scores):
            left_R = np.array([(procedure(drawn)[0] < methods).sum() / methods for drawn in own])
            columns.append(f"{left_R.mean():.3f} ± {left_R.std() / math.sqrt(draws):.3f}")
        print_row(name, columns)


def main() -> None:
    parser = command(__doc__, orders=200)
    parser.add_argument("--grid", help="a measured grid instead of the printed tables")
    parser.add_argument("--store", default="runs")
    parser.add_argument("--equal", type=int, metavar="METHODS", help="made-up scores instead of printed ones")
    options = parser.parse_args()
    if options.equal:
        left_when_equal(options.equal, 16, options.orders)
        return
    with ProcessPoolExecutor() as pool:
        if options.grid:
            compare(pool, options.grid, measured_places(options.grid, options.store), options.orders)
            return
        compare(pool, "the paper's few-shot tables", printed_places(), options.orders)
        compare(pool, "the field's tables", field_places(), options.orders)


if __name__ == "__main__":
    main()
