"""Racing: while a grid is measured block by block, a race finds the methods that need no more measurements.

There is a race for each place: a track, protocol, backbone, domain and k. Its datasets are measured in a fixed order,
first under one seed, then under the others. From time to time there is a planned look: the rule of ``best_set`` tests
the methods that are left, on the scores up to this look. A rule that promises 95 % for one test breaks its promise if
it is applied at many looks. So each look has its own significance level, and all looks together spend ``RACE_LEVEL``
(Lan and DeMets, Biometrika 70, 1983). The last look tests all scores of the place, with the level that is left.
``benchmarks/race.py`` measures how often the promise holds, and what a race saves; docs/race.md has the figures.

A decision depends on the scores up to its look and on nothing else. So it can be computed again at any time.

Shape legend: M methods, D datasets in the order of the race, S seeds, L looks.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from orchestrator.analysis import CONFIDENCE, SMALLEST_DIFFERENCE
from orchestrator.analysis.best_set import MIN_DATASETS, compare_datasets, exclusion_test, mean_over_seeds
from orchestrator.analysis.comparison import LEVEL, eliminate
from orchestrator.analysis.paired_tests import Floats, Ints

RACE_LEVEL = 0.03
"""The significance level that a race divides among its looks. With many rivals, looks are less correlated than
:func:`_levels` assumes, so errors are more frequent. Therefore this level is below the 0.045 of a verdict
(docs/race.md)."""
SEED_PART = 0.5
"""An assumed ratio: the variance of a difference between seeds, divided by its variance between datasets. It only
decides how the level is distributed over the looks."""
_GRID = 400
"""Number of points at which :func:`_levels` computes the density of random paths."""


@dataclass(frozen=True, order=True)
class Look:
    """A planned moment to decide: as soon as ``datasets`` datasets are measured, each under ``seeds`` seeds."""

    datasets: int
    seeds: int

    def uses(self, dataset: int, seed: int) -> bool:
        """Return whether this look uses the scores on a dataset under a seed, both given by their positions."""
        return dataset < self.datasets and seed < self.seeds


@dataclass(frozen=True)
class Race:
    """What the race of one place has settled so far.

    Attributes:
        beaten_by_M: position of the method that each method lost to; -1 for methods that are still in.
        p_M: the p-value at which each method went out; 1 for methods that are still in.
        out_at: the look at which each method went out; ``None`` for methods that are still in.
        at: the last look that was complete; ``None`` before the first.
        level: whether the methods that are left differ by less than the smallest difference that matters.
        next: the first look whose measurements are not complete; ``None`` when the race is over.
    """

    beaten_by_M: Ints
    p_M: Floats
    out_at: tuple[Look | None, ...]
    at: Look | None
    level: bool
    next: Look | None

    @property
    def left(self) -> Ints:
        """Positions of the methods that may still be the best."""
        return np.flatnonzero(self.beaten_by_M < 0)

    def measured(self, method: int) -> Look | None:
        """Return the last look that used a method's scores; ``None`` before the first look.

        It is the look at which the method went out. For a method that is still in, it is the last complete look.
        """
        return self.out_at[method] or self.at


def planned_looks(datasets: int, seeds: int) -> tuple[Look, ...]:
    """Return the looks of a race, the first after ``MIN_DATASETS`` datasets under one seed.

    A look follows each further dataset. When all datasets are measured, a look follows each further seed on all of
    them. Fewer datasets than ``MIN_DATASETS`` support no decision, so the only look is at the end.
    """
    if datasets < MIN_DATASETS:
        return (Look(datasets, seeds),)
    first = (Look(n, 1) for n in range(MIN_DATASETS, datasets + 1))
    return (*first, *(Look(datasets, s) for s in range(2, seeds + 1)))


def levels(looks: tuple[Look, ...]) -> tuple[float, ...]:
    """Return, for each look, the largest p-value that excludes a method."""
    last = looks[-1]

    def information(look: Look) -> float:
        return look.datasets / (1 + SEED_PART / look.seeds)

    return _levels(tuple(information(look) / information(last) for look in looks))


@cache
def _levels(shares: tuple[float, ...]) -> tuple[float, ...]:
    """Return, for each look, the largest p-value that excludes a method; all looks together spend ``RACE_LEVEL``.

    ``shares``: for each look, the information at this look as a share of the information at the last look.

    From look to look, the test statistic of two equal methods is assumed to follow a random path, a Brownian motion.
    Each look has a bound. If the path crosses it, the race wrongly excludes a method. A look spends the probability
    that a path crosses the bound of this look and no earlier one. The level is spent in proportion to the information.
    The bounds are computed one after the other, each from the density of the paths that have crossed no earlier bound
    (Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A 132, 1969). The p-value of a look is the
    probability that a path is beyond its bound, whether or not it has crossed an earlier one.
    """
    from scipy.optimize import brentq  # this import takes 0.4 s, and a plan without a race needs no levels

    found: list[float] = []
    spent, before = 0.0, 0.0
    points, weights = np.zeros(1), np.ones(1)  # positions and probabilities of the paths that crossed no bound
    for share in shares:
        total = RACE_LEVEL * share
        step, extent = math.sqrt(share - before), 8 * math.sqrt(share)
        bound = brentq(_excess, -extent, extent, args=(points, weights, step, total - spent))
        spent, before = total, share
        found.append(float(ndtr(-bound / math.sqrt(share))))
        grid, width = np.linspace(-extent, bound, _GRID, retstep=True)
        density = np.exp(-(((grid[:, None] - points) / step) ** 2) / 2) @ weights / (step * math.sqrt(2 * math.pi))
        points, weights = grid, density * width
        weights[[0, -1]] /= 2
    return tuple(found)


def _excess(bound: float, points: Floats, weights: Floats, step: float, to_spend: float) -> float:
    """Return the probability that a path first crosses the bound in this step, minus the level to spend."""
    return float(weights @ ndtr((points - bound) / step)) - to_spend


def race(
    scores_MDS: Floats, known_MDS: NDArray[np.bool_] | None = None, *, smallest_difference: float = SMALLEST_DIFFERENCE
) -> Race:
    """Return what a race has settled at the looks whose measurements are complete.

    Args:
        scores_MDS: accuracies in percent by method, dataset and seed, in the order in which they are measured; NaN
            where there is none.
        known_MDS: true where a score was measured, and where the cell failed, so that no score will come; by default
            true everywhere.
        smallest_difference: in points; methods that differ by less are level.
    """
    methods, datasets, seeds = scores_MDS.shape
    looks = planned_looks(datasets, seeds)
    beaten_by_M, p_M = np.full(methods, -1), np.ones(methods)
    out_at: list[Look | None] = [None] * methods
    at = None
    for look, level in zip(looks, levels(looks), strict=True):
        left = np.flatnonzero(beaten_by_M < 0)
        if known_MDS is not None and not known_MDS[left, : look.datasets, : look.seeds].all():
            return Race(beaten_by_M, p_M, tuple(out_at), at, False, look)
        at = look
        looked_MDS, (first, second) = scores_MDS[left, : look.datasets, : look.seeds], np.triu_indices(len(left), 1)
        differences_PD = mean_over_seeds(looked_MDS[first] - looked_MDS[second])  # under the seeds that both have
        confidence = 1 - (1 - CONFIDENCE) * level / LEVEL
        tests = compare_datasets(differences_PD, confidence)
        beaten_by, p = eliminate(len(left), exclusion_test(len(left), differences_PD, tests), level)
        out = np.flatnonzero(beaten_by >= 0)
        beaten_by_M[left[out]], p_M[left[out]] = left[beaten_by[out]], p[out]
        for place in left[out]:
            out_at[place] = look
        stay = (beaten_by[first] < 0) & (beaten_by[second] < 0)
        extent = np.maximum(-tests.lower, tests.upper)[stay]
        if bool(((tests.n[stay] >= MIN_DATASETS) & (extent <= smallest_difference)).all()):  # true without pairs
            return Race(beaten_by_M, p_M, tuple(out_at), at, bool(stay.any()), None)
    return Race(beaten_by_M, p_M, tuple(out_at), at, False, None)
