"""Friedman's and Nemenyi's tests: whether methods differ over datasets, and which of them.

Friedman's test ranks the methods on every dataset and asks whether the average ranks differ by more than chance. If
they do, Nemenyi's test says how far apart two average ranks must be: the critical difference (Demsar, Statistical
Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006). Average ranks depend on all methods that take part,
and the paired tests of ``statistics.compare`` do not, so the two can disagree on a pair.

Shape legend: M methods, N datasets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import MIN_DATASETS, MIN_SEEDS, SIGNIFICANCE, average_ranks

MIN_METHODS = 3
"""Two methods are compared by a paired test instead."""


@dataclass(frozen=True)
class CriticalDifference:
    """The result of both tests at one k of a panel, over the datasets that all methods have.

    Attributes:
        ranks: average rank of each method, best first; 1 is the best possible.
        p: p of Friedman's test.
        distance: the critical difference; methods whose ranks are closer do not differ by Nemenyi's test at ``alpha``.
        cliques: the largest groups of two or more neighbours of which no two differ; one group of all methods if
            Friedman's test finds no difference.
        datasets: number of datasets.
        seeds: smallest number of seeds that an accuracy is a mean over; 0 if no method depends on a seed.
    """

    ranks: Mapping[str, float]
    p: float
    distance: float
    cliques: tuple[tuple[str, ...], ...]
    datasets: int
    seeds: int
    alpha: float = SIGNIFICANCE

    @property
    def differ(self) -> bool:
        """Whether Friedman's test finds a difference among the methods."""
        return self.p < self.alpha


def friedman(scores: Mapping[str, Sequence[float]]) -> float:
    """p of Friedman's test over datasets, in the form of Iman and Davenport (1980).

    chi2 is SciPy's, corrected for ties. F = (N - 1) chi2 / (N (M - 1) - chi2) has (M - 1) and (M - 1)(N - 1) degrees of
    freedom, and is less conservative than chi2 with few datasets. 1.0 if all methods tie on every dataset.

    Args:
        scores: accuracies of at least three methods on the same datasets.
    """
    from scipy import stats

    scores_MN = np.round(np.array([list(own) for own in scores.values()], dtype=float), 9)
    methods, datasets = scores_MN.shape
    if (scores_MN == scores_MN[0]).all():
        return 1.0
    chi2 = float(stats.friedmanchisquare(*scores_MN).statistic)
    return float(stats.f.sf(davenport(chi2, methods, datasets), methods - 1, (methods - 1) * (datasets - 1)))


def davenport(chi2: float, methods: int, datasets: int) -> float:
    """Iman and Davenport's F from Friedman's chi2; infinite if every dataset ranks the methods in the same order."""
    denominator = datasets * (methods - 1) - chi2
    return (datasets - 1) * chi2 / denominator if denominator > 1e-9 else math.inf


def critical_distance(methods: int, datasets: int, alpha: float = SIGNIFICANCE) -> float:
    """Nemenyi's critical difference of average ranks: q sqrt(M (M + 1) / (6 N)).

    q is the upper quantile of the studentized range for M means and infinite degrees of freedom, divided by sqrt(2).
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * datasets))


def cliques(ranks: Mapping[str, float], distance: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbouring ranks narrower than ``distance``, without runs that lie inside another."""
    order = sorted(ranks, key=lambda method: ranks[method])
    runs: list[tuple[int, int]] = []
    for start, first in enumerate(order):
        stop = max(i for i, method in enumerate(order) if ranks[method] - ranks[first] < distance)
        if stop > start and (not runs or stop > runs[-1][1]):
            runs.append((start, stop))
    return tuple(tuple(order[start : stop + 1]) for start, stop in runs)


def critical_difference(panel: Panel, k: int) -> CriticalDifference | str:
    """Both tests at ``k``, or a sentence that says why there are too few methods, datasets or seeds."""
    scores, seeds = panel.common_scores(k)
    datasets = len(next(iter(scores.values()), ()))
    if len(scores) < MIN_METHODS:
        return f"No critical difference: it compares {MIN_METHODS} methods or more, and {len(scores)} can be ranked."
    if datasets < MIN_DATASETS:
        return f"No critical difference: {datasets} of the {MIN_DATASETS} datasets that the test needs."
    if seeds < MIN_SEEDS and panel.seeded & set(scores):
        return "No critical difference: one seed, and another draw of the support could reverse the ranks."
    p, distance = friedman(scores), critical_distance(len(scores), datasets)
    ranks = average_ranks(scores)
    ranks = {method: ranks[method] for method in sorted(ranks, key=lambda method: ranks[method])}
    alike = cliques(ranks, distance) if p < SIGNIFICANCE else (tuple(ranks),)
    return CriticalDifference(ranks, p, distance, alike, datasets, seeds)
