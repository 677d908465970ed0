"""Whether methods differ over datasets at all, which of them, and the diagram that shows it.

Friedman's test ranks the methods on every dataset and asks whether the average ranks differ more than chance would
have them. Where they do, Nemenyi's test says how far two average ranks must lie apart: the critical difference. (As
Demsar, Statistical Comparisons of Classifiers over Multiple Data Sets, JMLR 7, 2006.) Ranks depend on which methods
take part, so the paired tests of ``statistics.compare``, which do not, can say otherwise of a single pair.

Shapes: M methods, N datasets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.report.analysis.panel import Panel
from orchestrator.report.analysis.statistics import MIN_DATASETS, MIN_SEEDS, SIGNIFICANCE, average_ranks

MIN_METHODS = 3
"""Two methods are a pair, which has a paired test of its own."""


@dataclass(frozen=True)
class CriticalDifference:
    """Methods over the datasets that all of them have, at one k of a panel.

    Attributes:
        ranks: average rank of each method, best first; 1 is the best there can be.
        p: of Friedman's test.
        distance: average ranks that lie less than this apart do not differ, by Nemenyi's test at ``alpha``.
        cliques: the largest groups of neighbours, two methods at least, within which no two differ; all methods where
            Friedman's test finds no difference.
        seeds: what each accuracy is a mean over, the least; 0 where no method draws anything.
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
        """Whether Friedman's test finds that the methods are not all alike."""
        return self.p < self.alpha


def friedman(scores: Mapping[str, Sequence[float]]) -> float:
    """p of Friedman's test over datasets, with ties and in the form of Iman and Davenport (1980).

    chi2 is SciPy's, corrected for ties; F = (N - 1) chi2 / (N (M - 1) - chi2) has (M - 1) and (M - 1)(N - 1) degrees of
    freedom, and is the less conservative of the two with few datasets. 1.0 where all methods tie everywhere.

    Args:
        scores: of at least three methods over the same datasets.
    """
    from scipy import stats

    scores_MN = np.round(np.array([list(own) for own in scores.values()], dtype=float), 9)
    methods, datasets = scores_MN.shape
    if (scores_MN == scores_MN[0]).all():
        return 1.0
    chi2 = float(stats.friedmanchisquare(*scores_MN).statistic)
    return float(stats.f.sf(davenport(chi2, methods, datasets), methods - 1, (methods - 1) * (datasets - 1)))


def davenport(chi2: float, methods: int, datasets: int) -> float:
    """Iman and Davenport's F of Friedman's chi2; infinite where every dataset has the methods in one order."""
    rest = datasets * (methods - 1) - chi2
    return (datasets - 1) * chi2 / rest if rest > 1e-9 else math.inf


def critical_distance(methods: int, datasets: int, alpha: float = SIGNIFICANCE) -> float:
    """Nemenyi's critical difference of average ranks: q sqrt(M (M + 1) / (6 N)).

    q is the studentized range's upper quantile for M means and infinitely many degrees of freedom, over sqrt(2).
    """
    from scipy import stats

    q = float(stats.studentized_range.ppf(1 - alpha, methods, math.inf)) / math.sqrt(2)
    return q * math.sqrt(methods * (methods + 1) / (6 * datasets))


def cliques(ranks: Mapping[str, float], distance: float) -> tuple[tuple[str, ...], ...]:
    """The longest runs of neighbouring ranks that are less than ``distance`` wide; runs inside another are left out."""
    order = sorted(ranks, key=lambda method: ranks[method])
    runs: list[tuple[int, int]] = []
    for start, first in enumerate(order):
        stop = max(i for i, method in enumerate(order) if ranks[method] - ranks[first] < distance)
        if stop > start and (not runs or stop > runs[-1][1]):
            runs.append((start, stop))
    return tuple(tuple(order[start : stop + 1]) for start, stop in runs)


def critical_difference(panel: Panel, k: int) -> CriticalDifference | str:
    """The comparison at ``k``, or the sentence that says why there is none."""
    scores, seeds = panel.common_scores(k)
    datasets = len(next(iter(scores.values()), ()))
    if len(scores) < MIN_METHODS:
        return f"No critical difference: it compares {MIN_METHODS} methods or more, and {len(scores)} can be ranked."
    if datasets < MIN_DATASETS:
        return f"No critical difference: {datasets} of the {MIN_DATASETS} datasets that it takes to tell methods apart."
    if seeds < MIN_SEEDS and panel.repeatable & set(scores):
        return "No critical difference: one seed, and another draw of the support could turn the ranks around."
    p, distance = friedman(scores), critical_distance(len(scores), datasets)
    ranks = average_ranks(scores)
    ranks = {method: ranks[method] for method in sorted(ranks, key=lambda method: ranks[method])}
    alike = cliques(ranks, distance) if p < SIGNIFICANCE else (tuple(ranks),)
    return CriticalDifference(ranks, p, distance, alike, datasets, seeds)
