"""The best set over datasets: which methods may be the best on datasets like those that were measured.

The test depends on the number of datasets that two methods share, and on nothing else: Student's paired t-test below 10
datasets, Wilcoxon's exact signed-rank test from 10 on. ``benchmarks/coverage.py`` measures the reasons:

- With either test, the truly best method is in the set in at least 95 % of draws with 5, 8 and 16 datasets: for normal,
  tied, skewed and heavy-tailed scores, and if one method scatters five times more than the others.
- Below 10 datasets there are too few ranks. Take a lead of 3 points, differences with a deviation of 2 points and 11
  methods. With 5 datasets the signed-rank test finds the lead over one rival in 0 % of draws and the t-test in 32 %;
  with 8 datasets in 58 % and 74 %. With 8 datasets and 14 methods the signed-rank test can never exclude a method.
- With 10 datasets they are close: 87 % and 90 %. But if the rivals lose 20 points more on one dataset in ten, the
  t-test finds the best of 6 methods in 4 % of draws only, because a few large differences widen its interval. The
  signed-rank test finds it in 83 %.

Fewer than 5 datasets support no statement. Where accuracies tie, the t-test on 3 datasets keeps the best of 11 methods
in only 88 % of draws, because three equal differences show no spread.

Shape legend: M methods, D datasets, S seeds, P pairs of methods.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import cache

import numpy as np
from scipy.special import stdtrit

from orchestrator.analysis import SMALLEST_DIFFERENCE
from orchestrator.analysis.comparison import (
    LARGEST_COUNT,
    POWER,
    Comparison,
    MethodScore,
    make_comparison,
    significance_per_test,
)
from orchestrator.analysis.paired_tests import CONFIDENCE, Floats, PairedTests, paired_t_tests, signed_rank_tests

MIN_DATASETS = 5
"""With fewer shared datasets, no method is excluded and no pair is called level."""
SIGNED_RANK_FROM = 10
"""From this many shared datasets on, Wilcoxon's signed-rank test decides, and below it Student's t-test."""


def best_set(
    scores: Mapping[str, Mapping[tuple[str, int], float]],
    *,
    without_seeds: Collection[str] = (),
    smallest_difference: float = SMALLEST_DIFFERENCE,
) -> Comparison:
    """Compare methods over datasets. Each pair of methods is compared on the datasets and seeds that both have.

    Args:
        scores: accuracy in percent of each method by (dataset, seed). NaN counts as missing. Datasets of several
            domains may stand together if their names differ.
        without_seeds: methods that draw nothing at random. Their one score on a dataset is compared with every seed of
            the other methods.
    """
    methods = [method for method, own in scores.items() if any(math.isfinite(score) for score in own.values())]
    scores_MDS = _score_array([scores[method] for method in methods])
    seeds_MD = np.isfinite(scores_MDS).sum(axis=2)
    fixed_M = np.array([method in without_seeds for method in methods], dtype=bool)
    scores_MDS[fixed_M] = _mean_over_seeds(scores_MDS[fixed_M])[..., None]
    means_MD = _mean_over_seeds(scores_MDS)
    method_scores = [
        MethodScore(
            method=method,
            mean=float(np.nanmean(means)),
            n=int(np.isfinite(means).sum()),
            seeds=0 if fixed else int(seeds[seeds > 0].min()),
        )
        for method, means, seeds, fixed in zip(methods, means_MD, seeds_MD, fixed_M, strict=True)
    ]
    first, second = np.triu_indices(len(methods), 1)
    tests = tests_over_datasets(_mean_over_seeds(scores_MDS[first] - scores_MDS[second]))

    def more(place: int) -> int | None:
        """About how many more datasets would settle a pair."""
        return more_datasets(
            float(tests.effect[place]),
            (float(tests.lower[place]), float(tests.upper[place])),
            int(tests.n[place]),
            significance=significance_per_test(len(methods)),
            smallest_difference=smallest_difference,
        )

    usable_P = tests.n >= MIN_DATASETS
    return make_comparison(
        method_scores, tests, usable_P, more, scope="datasets", smallest_difference=smallest_difference
    )


def tests_over_datasets(differences_PD: Floats) -> PairedTests:
    """The test of each row that its number of datasets asks for. NaN marks a dataset that a pair does not share."""
    tests = paired_t_tests(differences_PD)
    many = tests.n >= SIGNED_RANK_FROM
    if many.any():
        signed_rank = signed_rank_tests(differences_PD[many])
        for field in fields(PairedTests):
            getattr(tests, field.name)[many] = getattr(signed_rank, field.name)
    return tests


def more_datasets(
    effect: float,
    interval: tuple[float, float],
    n: int,
    *,
    significance: float,
    smallest_difference: float = SMALLEST_DIFFERENCE,
) -> int | None:
    """About how many more datasets would settle a pair with a probability of 80 %, if its numbers stay as they are.

    The pair is settled when one method is significantly better, or when the interval of the difference lies within plus
    or minus ``smallest_difference``. N is the smallest number whose t quantiles for the significance and for the power
    add up to effect * sqrt(N), or to the distance between difference and range in units of the interval's width.

    Args:
        effect: observed size of the difference in standard deviations of one dataset's difference.
        interval: the 95 % interval of the difference in points, in either direction; NaN if there is none.
        significance: one-sided p at which a method is excluded.

    Returns:
        At most ``LARGEST_COUNT``; ``None`` with fewer than two datasets.
    """
    if n < 2:
        return None
    needed = _datasets_for(effect, 1 - significance, POWER)
    if all(map(math.isfinite, interval)):
        middle, half = (interval[1] + interval[0]) / 2, (interval[1] - interval[0]) / 2
        deviation = half * math.sqrt(n) / float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))
        distance = smallest_difference - abs(middle)
        # Near a difference of 0 the interval may leave the range on either side, so each side gets half of the
        # probability of a miss, 1 - POWER.
        level = (
            _datasets_for(distance / deviation, (1 + CONFIDENCE) / 2, (1 + POWER) / 2) if deviation else MIN_DATASETS
        )
        needed = min(needed, level)
    return min(max(needed, n + 1, MIN_DATASETS) - n, LARGEST_COUNT)


def _datasets_for(effect: float, confidence: float, power: float) -> int:
    """Return the smallest N whose t quantiles for ``confidence`` and ``power`` add up to effect * sqrt(N)."""
    return int(np.searchsorted(-_detectable(confidence, power), -effect)) + 2 if effect > 0 else 2 * LARGEST_COUNT


@cache
def _detectable(confidence: float, power: float) -> Floats:
    """Return the effect that N = 2, 3, ... datasets detect; it falls with N."""
    n = np.arange(2, 2 * LARGEST_COUNT)
    return np.asarray((stdtrit(n - 1, confidence) + stdtrit(n - 1, power)) / np.sqrt(n))


def _score_array(scores: Sequence[Mapping[tuple[str, int], float]]) -> Floats:
    """Accuracies as an MDS array, NaN where there is none."""
    datasets = {name: place for place, name in enumerate(sorted({dataset for own in scores for dataset, _ in own}))}
    seeds = {name: place for place, name in enumerate(sorted({seed for own in scores for _, seed in own}))}
    scores_MDS = np.full((len(scores), len(datasets), len(seeds)), np.nan)
    for m, own in enumerate(scores):
        for (dataset, seed), score in own.items():
            scores_MDS[m, datasets[dataset], seeds[seed]] = score
    return scores_MDS


def _mean_over_seeds(values: Floats) -> Floats:
    """Mean over the last axis without NaN; NaN where everything is."""
    n = np.isfinite(values).sum(axis=-1)
    return np.asarray(np.divide(np.nansum(values, axis=-1), n, out=np.full(n.shape, np.nan), where=n > 0))
