"""The statistics of a report, each formula on its own so that it can be checked by hand.

Seeds are repetitions: they give a mean, a *sample* standard deviation (n - 1) and an n. Datasets are what a claim is
tested over: two methods are compared by their accuracies on the same datasets, paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

SIGNIFICANCE = 0.05
MIN_DATASETS = 6
"""Below this a two-sided Wilcoxon test cannot reach 5 %: with five pairs its smallest p is 2 / 2**5 = 0.0625."""
MIN_SEEDS = 2
EXACT_UP_TO = 50
"""Differences for which the signed-rank distribution is counted out; 2**50 is still exact in double precision."""
_DIGITS = 9
"""Differences are rounded to this many digits before they are ranked, so that rounding noise makes no order."""


@dataclass(frozen=True)
class Summary:
    """A mean over ``n`` repetitions and their sample standard deviation; no deviation from one repetition."""

    mean: float
    std: float | None
    n: int


def summarize(values: Sequence[float]) -> Summary:
    """Mean and sample standard deviation (ddof 1) of at least one value."""
    n = len(values)
    if n == 0:
        raise ValueError("nothing to summarize")
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(mean, None, 1)
    return Summary(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)), n)


def seed_means(scores: Mapping[str, Mapping[int, float]], datasets: Sequence[str]) -> dict[int, float]:
    """For each seed, the mean over ``datasets`` of ``scores[dataset][seed]``; seeds that lack a dataset are left out.

    A mean over fewer datasets is a mean over easier or harder ones: it must not stand beside the others.
    """
    if not datasets:
        return {}
    complete = set.intersection(*(set(scores.get(dataset, {})) for dataset in datasets))
    return {seed: math.fsum(scores[d][seed] for d in datasets) / len(datasets) for seed in sorted(complete)}


def average_ranks(scores: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Mean rank of each method over datasets, 1 the best; ties share the mean of the ranks they take."""
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
    """Two-sided p of Wilcoxon's signed-rank test on paired values; equal pairs are dropped, 1.0 if none is left.

    Dropping them (SciPy's ``zero_method="wilcox"``, Wilcoxon's own) keeps the test exact: given that a pair differs,
    either sign is as likely. Equal pairs speak for neither side and make the test weaker, as they should; counting
    half of each to both sides, as Demsar (JMLR 2006) does, has no exact distribution and gives two identical methods a
    statistic.

    Up to ``EXACT_UP_TO`` differences the p is exact, ties or not: every assignment of signs to the (shared) ranks is
    counted. SciPy approximates or permutes there as soon as two differences tie, which small test splits often do.
    Beyond, it is the normal approximation with the variance corrected for ties.
    """
    from scipy import stats

    differences = np.array([d for d in _differences(first, second) if d != 0])
    if not len(differences):
        return 1.0
    if len(differences) > EXACT_UP_TO:
        return float(stats.wilcoxon(differences, zero_method="wilcox", method="asymptotic").pvalue)
    doubled = np.rint(2 * stats.rankdata(np.abs(differences))).astype(int)  # shared ranks are halves: now whole
    counts = np.zeros(doubled.sum() + 1)
    counts[0] = 1.0
    for rank in doubled:
        counts[rank:] = counts[rank:] + counts[:-rank]
    observed = doubled[differences > 0].sum()
    tail = min(counts[: observed + 1].sum(), counts[observed:].sum())
    return float(min(1.0, 2 * tail / counts.sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction: the smallest p times m, the next times m - 1, ..., never decreasing, at most 1."""
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
    """One method at one k: ``accuracies[dataset][seed]``; ``fixed`` if it draws nothing that a seed decides."""

    accuracies: Mapping[str, Mapping[int, float]]
    fixed: bool = False


@dataclass(frozen=True)
class Pair:
    """Two methods over the same datasets.

    Attributes:
        difference: mean over datasets of ``first`` minus ``second``, in points.
        datasets, seeds: how many datasets both have, and seeds on each of them (the least); 0 seeds where neither
            method draws anything, so that there is nothing to repeat.
        p, p_holm: of the test, and corrected over all pairs that were tested; ``None`` where no test was made.
        why_not: why no test was made, empty if one was.
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
    why_not: str = ""

    @property
    def claimed(self) -> bool:
        """Whether the difference may be called significant."""
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE

    def turned(self) -> Pair:
        """The same pair seen from the other method."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            wins=self.losses,
            losses=self.wins,
        )


def compare(scores: Mapping[str, Scores]) -> list[Pair]:
    """Every pair of methods, tested where it may be, Holm-corrected over all tested pairs.

    All pairs are the family, not only those with the winner: which method is the winner was read off the same data.
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
    """The pair on what both have: the same datasets and, for methods that draw a support, the same seeds."""
    left, right, seeds = [], [], []
    for dataset in a.accuracies:
        x, y = a.accuracies[dataset], b.accuracies.get(dataset, {})
        common = set(x) & set(y)
        xs = list(x.values()) if a.fixed else [x[s] for s in x if b.fixed or s in common]
        ys = list(y.values()) if b.fixed else [y[s] for s in y if a.fixed or s in common]
        if xs and ys:
            left.append(summarize(xs).mean)
            right.append(summarize(ys).mean)
            # A fixed method has nothing to repeat: its rival's seeds count.
            seeds.append(len(ys) if a.fixed else len(xs) if b.fixed else len(common))
    wins, ties, losses = wins_ties_losses(left, right)
    fixed = a.fixed and b.fixed
    n, repeats = len(left), 0 if fixed else min(seeds, default=0)
    if n < MIN_DATASETS:
        why_not = f"{n} dataset{'s' if n != 1 else ''}; a test needs {MIN_DATASETS}"
    elif repeats < MIN_SEEDS and not fixed:
        why_not = "one seed"
    else:
        why_not = ""
    return Pair(
        first,
        second,
        difference=summarize(left).mean - summarize(right).mean if n else 0.0,
        datasets=n,
        seeds=repeats,
        wins=wins,
        ties=ties,
        losses=losses,
        p=None if why_not else wilcoxon(left, right),
        p_holm=None,
        why_not=why_not,
    )
