"""The statistics of a report: means, average ranks, Wilcoxon's test and Holm's correction, one function each.

Seeds are repetitions: they give a mean, a *sample* standard deviation (n - 1) and an n. Tests run over datasets: two
methods are compared by their accuracies on the same datasets, paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.analysis.seed_means import summarize

SIGNIFICANCE = 0.05
MIN_DATASETS = 6
"""Below this a two-sided Wilcoxon test cannot reach 5 %: with five pairs its smallest p is 2 / 2**5 = 0.0625."""
MIN_SEEDS = 2
EXACT_UP_TO = 50
"""Up to this many differences, every sign assignment is counted; 2**50 is still exact in double precision."""
_DIGITS = 9
"""Values are rounded to this many digits before they are ranked, so that rounding errors do not break ties."""


def average_ranks(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean rank of each method over datasets; 1 is best, and methods that tie share the mean of their ranks.

    Args:
        scores: accuracies of each method (M of them) on the same N datasets.
    """
    from scipy.stats import rankdata

    scores_MN = np.round(np.array([list(own) for own in scores.values()], dtype=float), _DIGITS)
    if scores_MN.size == 0:
        return {}
    ranks_MN = rankdata(-scores_MN, axis=0)
    return {method: float(rank) for method, rank in zip(scores, ranks_MN.mean(axis=1), strict=True)}


def wins_ties_losses(first: Sequence[float], second: Sequence[float]) -> tuple[int, int, int]:
    """On how many datasets ``first`` is above, equal to and below ``second``."""
    differences = _differences(first, second)
    wins, losses = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return wins, len(differences) - wins - losses, losses


def wilcoxon(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test on paired values; 1.0 if all pairs are equal.

    Equal pairs are dropped (SciPy's ``zero_method="wilcox"``, Wilcoxon's own). This keeps the test exact: given that a
    pair differs, both signs are equally likely. Equal pairs support neither side and make the test weaker, as they
    should. Counting half of each for both sides, as Demsar (JMLR 7, 2006) does, has no exact distribution.

    Up to ``EXACT_UP_TO`` differences, p is exact, with or without ties: every assignment of signs to the (shared)
    ranks is counted. SciPy approximates or permutes as soon as two differences tie, which is common on small test
    splits. With more differences, p is the normal approximation with the variance corrected for ties.
    """
    from scipy import stats

    differences = np.array([d for d in _differences(first, second) if d != 0])
    if not len(differences):
        return 1.0
    if len(differences) > EXACT_UP_TO:
        return float(stats.wilcoxon(differences, zero_method="wilcox", method="asymptotic").pvalue)
    doubled = np.rint(2 * stats.rankdata(np.abs(differences))).astype(int)  # shared ranks are multiples of one half
    counts = np.zeros(doubled.sum() + 1)
    counts[0] = 1.0
    for rank in doubled:
        counts[rank:] = counts[rank:] + counts[:-rank]
    observed = doubled[differences > 0].sum()
    tail = min(counts[: observed + 1].sum(), counts[observed:].sum())
    return float(min(1.0, 2 * tail / counts.sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the smallest of m p is multiplied by m, the next by m - 1, and so on.

    Corrected p never decrease in this order, and are at most 1.
    """
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        running = max(running, min(1.0, (len(p_values) - step) * p_values[index]))
        adjusted[index] = running
    return adjusted


def _differences(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [round(a - b, _DIGITS) for a, b in zip(first, second, strict=True)]


@dataclass(frozen=True)
class Scores:
    """One method at one k: ``accuracies[dataset][seed]``; ``fixed`` if no seed can change them."""

    accuracies: Mapping[str, Mapping[int, float]]
    fixed: bool = False


@dataclass(frozen=True)
class Pair:
    """Two methods compared over the datasets that both have.

    Attributes:
        difference: mean over datasets of ``first`` minus ``second``, in points.
        datasets: number of datasets.
        seeds: smallest number of seeds on any of them; 0 if neither method depends on a seed.
        wins, ties, losses: on how many datasets ``first`` is above, equal to and below ``second``.
        p, p_holm: p of the test, and p corrected over all tested pairs; ``None`` if the pair was not tested.
        reason_untested: why the pair was not tested; empty if it was.
    """

    first: str
    second: str
    difference: float
    datasets: int
    seeds: int
    wins: int
    ties: int
    losses: int
    p: float | None
    p_holm: float | None
    reason_untested: str = ""

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below ``SIGNIFICANCE``."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE

    def reversed(self) -> Pair:
        """The same comparison with ``first`` and ``second`` exchanged."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            wins=self.losses,
            losses=self.wins,
        )


def compare(scores: Mapping[str, Scores]) -> list[Pair]:
    """Compare every pair of methods. p is Holm-corrected over all tested pairs.

    The correction covers all pairs, not only those with the winner, because the same data decided which method wins.
    """
    methods = list(scores)
    pairs = [
        _pair(a, scores[a], b, scores[b])
        for i, a in enumerate(methods)
        for b in methods[i + 1 :]
        if set(scores[a].accuracies) & set(scores[b].accuracies)
    ]
    tested = [pair for pair in pairs if pair.p is not None]
    corrected = dict(zip(map(id, tested), holm([p.p for p in tested if p.p is not None]), strict=True))
    return [replace(pair, p_holm=corrected.get(id(pair))) for pair in pairs]


def _pair(first: str, a: Scores, second: str, b: Scores) -> Pair:
    """Compare two methods on the datasets and, for methods that depend on seeds, on the seeds that both have."""
    left, right, seeds = [], [], []
    for dataset in a.accuracies:
        x, y = a.accuracies[dataset], b.accuracies.get(dataset, {})
        common = set(x) & set(y)
        xs = list(x.values()) if a.fixed else [x[s] for s in x if b.fixed or s in common]
        ys = list(y.values()) if b.fixed else [y[s] for s in y if a.fixed or s in common]
        if xs and ys:
            left.append(summarize(xs).mean)
            right.append(summarize(ys).mean)
            # A fixed method has one value for all seeds, so the seeds of the other method count.
            seeds.append(len(ys) if a.fixed else len(xs) if b.fixed else len(common))
    wins, ties, losses = wins_ties_losses(left, right)
    fixed = a.fixed and b.fixed
    n, repetitions = len(left), 0 if fixed else min(seeds, default=0)
    if n < MIN_DATASETS:
        reason_untested = f"{n} dataset{'s' if n != 1 else ''}; a test needs {MIN_DATASETS}"
    elif repetitions < MIN_SEEDS and not fixed:
        reason_untested = "one seed"
    else:
        reason_untested = ""
    return Pair(
        first,
        second,
        difference=summarize(left).mean - summarize(right).mean if n else 0.0,
        datasets=n,
        seeds=repetitions,
        wins=wins,
        ties=ties,
        losses=losses,
        p=None if reason_untested else wilcoxon(left, right),
        p_holm=None,
        reason_untested=reason_untested,
    )
