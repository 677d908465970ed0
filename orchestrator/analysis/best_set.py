"""The best set over datasets: the methods that may be the best on datasets like the measured ones.

The number of datasets that two methods share decides which test compares them. With 5 to 7 datasets, it is Student's
paired t-test. With 8 or more, it is the joint sign-flip test of ``sign_flips``. Both test the mean difference.
``benchmarks/coverage.py`` measures how often the best set contains the truly best method, and docs/verdict.md has the
figures behind each choice.

With fewer than 5 datasets, nothing is concluded. On 3 datasets, for example, a method's lead is often the same on every
dataset if accuracies are rounded. Equal leads show no spread, so a t-test takes the lead as certain. In a simulation of
11 equally good methods on 3 datasets, accuracies scatter by 1 point and are rounded to whole points. The t-test then
keeps a given method in only 91 % of draws.

The sign-flip test needs 8 datasets. With 5, there are only 2^5 ways to flip the signs. The smallest possible p-value is
then 1/32, which hardly excludes a method.

Shape legend: M methods, D datasets, S seeds, P pairs of methods.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from orchestrator.analysis import CONFIDENCE, LARGEST_COUNT, POWER, SMALLEST_DIFFERENCE
from orchestrator.analysis.comparison import Test, by_pair, eliminate, make_verdict
from orchestrator.analysis.paired_tests import Floats, Ints, PairedTests, paired_t_tests, skewness, with_skew_intervals
from orchestrator.analysis.sign_flips import flipped_statistics, joint_p
from orchestrator.analysis.verdict import MethodScore, Verdict

MIN_DATASETS = 5
"""With fewer shared datasets, no method is excluded and no pair is called level."""
JOINT_FROM = 8
"""Pairs with at least this many shared datasets are tested jointly. Pairs with fewer are tested one by one."""


def best_set(
    scores: Mapping[str, Mapping[tuple[str, int], float]],
    *,
    without_seeds: Collection[str] = (),
    smallest_difference: float = SMALLEST_DIFFERENCE,
    raced: Mapping[str, tuple[str, float]] | None = None,
) -> Verdict:
    """Compare methods over datasets. Each pair of methods is compared on the datasets and seeds that both have.

    Args:
        scores: accuracy in percent of each method by (dataset, seed). NaN counts as missing. Datasets of several
            domains may be compared together if their names differ.
        without_seeds: methods that draw nothing at random. Their single score on a dataset is compared with every seed
            of the other methods.
        raced: the decisions of a race, as excluded method -> the better method and the p-value. A race excludes methods
            while a grid is measured. ``None`` without a race.
    """
    methods = [method for method, own in scores.items() if any(math.isfinite(score) for score in own.values())]
    scores_MDS = _score_array([scores[method] for method in methods])
    seeds_MD = np.isfinite(scores_MDS).sum(axis=2)
    fixed_M = np.array([method in without_seeds for method in methods], dtype=bool)
    scores_MDS[fixed_M] = mean_over_seeds(scores_MDS[fixed_M])[..., None]
    means_MD = mean_over_seeds(scores_MDS)
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
    differences_PDS = scores_MDS[first] - scores_MDS[second]
    differences_PD = mean_over_seeds(differences_PDS)
    tests = compare_datasets(differences_PD)

    def more(place: int, significance: float) -> tuple[int | None, int | None]:
        """Return two estimates: how many more datasets, and how many more seeds, would settle the pair at ``place``.

        An estimate is ``None`` if :func:`more_datasets` or :func:`more_seeds` has none.
        """
        difference, deviation, n = float(tests.difference[place]), float(tests.deviation[place]), int(tests.n[place])
        settings = {"significance": significance, "smallest_difference": smallest_difference}
        return (
            more_datasets(difference, deviation, n, **settings),
            more_seeds(difference, deviation, differences_PDS[place], **settings),
        )

    if raced is None:
        eliminated = eliminate(len(methods), exclusion_test(len(methods), differences_PD, tests))
    else:
        places = [methods.index(raced[method][0]) if method in raced else -1 for method in methods]
        p = [raced[method][1] if method in raced else 1.0 for method in methods]
        eliminated = np.array(places), np.array(p)
    return make_verdict(
        method_scores,
        tests,
        tests.n >= MIN_DATASETS,
        eliminated,
        more,
        scope="datasets",
        smallest_difference=smallest_difference,
        skewed_M=skewed_methods(len(methods), differences_PD, tests),
        raced=raced is not None,
    )


def compare_datasets(differences_PD: Floats, confidence: float = CONFIDENCE) -> PairedTests:
    """Return Student's t-test of each pair of methods.

    NaN marks a dataset that the two methods do not share. If they share 8 datasets or more, the interval of the pair
    allows for skew. ``confidence``: the level of the intervals.
    """
    tests = paired_t_tests(differences_PD, confidence)
    return with_skew_intervals(tests, differences_PD, tests.n >= JOINT_FROM, confidence)


def exclusion_test(methods: int, differences_PD: Floats, tests: PairedTests) -> Test:
    """Return a function that tests each remaining method against all other remaining methods, its rivals.

    Rivals that share 8 datasets or more with the method are tested jointly. Rivals that share 5 to 7 are tested one by
    one. Rivals that share fewer are not tested. The significance level is divided between the joint test and the single
    tests in proportion to their numbers of rivals.
    """
    places, ones = np.arange(len(tests.n)), np.ones(len(tests.n))
    place_MM = by_pair(methods, places, places, 0)
    sign_MM = by_pair(methods, ones, -ones, 0.0)  # the tests compare method i with method j for i < j
    n_MM = by_pair(methods, tests.n, tests.n, 0)
    p_MM = by_pair(methods, tests.p_first, tests.p_second, 1.0)
    flipped_PF = flipped_statistics(differences_PD) if (tests.n >= JOINT_FROM).any() else None

    def p_of(method: int, left: Ints) -> tuple[float, int]:
        """Return the p-value of the test of one method against the methods left, and the strongest of these rivals."""
        joint = left[n_MM[left, method] >= JOINT_FROM]
        single = left[(n_MM[left, method] >= MIN_DATASETS) & (n_MM[left, method] < JOINT_FROM)]
        p, rival, rivals = 1.0, method, len(joint) + len(single)
        if len(single):
            smallest = int(single[p_MM[single, method].argmin()])
            p, rival = float(p_MM[smallest, method]) * rivals, smallest
        if len(joint):
            assert flipped_PF is not None
            statistics_PF = flipped_PF[place_MM[joint, method]] * sign_MM[joint, method, None]
            together = joint_p(statistics_PF) * rivals / len(joint)
            if together < p:
                p, rival = together, int(joint[statistics_PF[:, 0].argmax()])
        return min(p, 1.0), rival

    def test(left: Ints) -> tuple[Floats, Ints]:
        """Return the p-value and the strongest rival of each remaining method."""
        found = [p_of(int(method), left) for method in left]
        return np.array([p for p, _ in found]), np.array([rival for _, rival in found])

    return test


def skewed_methods(methods: int, differences_PD: Floats, tests: PairedTests) -> NDArray[np.bool_]:
    """Return which methods have rivals that are usually a little better and at times much worse.

    The leads of such rivals over the method have a clearly negative skewness. Each skewness is divided by its standard
    error in normal samples. These quotients are averaged over the rivals that share 8 datasets or more with the method,
    and the mean must be clearly negative.

    With 5 rivals and such skew, this finds 37, 80 and 96 % of the wrongly excluded methods at 8, 12 and 16 datasets.
    Without skew, it finds 1 to 3 % of the excluded methods.
    """
    n = np.maximum(tests.n, JOINT_FROM).astype(float)
    errors = np.sqrt(6 * n * (n - 1) / ((n - 2) * (n + 1) * (n + 3)))
    leads_P = np.where(tests.n >= JOINT_FROM, skewness(tests, differences_PD) / errors, 0.0)
    leads_MM = by_pair(methods, leads_P, -leads_P, 0.0)
    rivals_M = (by_pair(methods, tests.n, tests.n, 0) >= JOINT_FROM).sum(axis=0)
    mean_M = leads_MM.sum(axis=0) / np.maximum(rivals_M, 1)
    return np.asarray(mean_M < -np.maximum(1.0, 2.0 / np.sqrt(np.maximum(rivals_M, 1))))


def more_datasets(
    difference: float, deviation: float, n: int, *, significance: float, smallest_difference: float
) -> int | None:
    """Return the estimated number of further datasets that settle a pair with a probability of 80 %.

    The estimate takes the mean and the deviation of the difference as fixed. The pair is settled when one method is
    significantly better, or when the interval of the difference lies within plus or minus ``smallest_difference``. For
    each of the two cases, N datasets are enough if ``distance * sqrt(N) / deviation`` is at least the sum of two
    t quantiles: one for the test or interval, one for the power. In the first case, ``distance`` is how far the
    difference is from 0. In the second case, it is how far the difference is from the nearer end of the range. The
    smaller N of the two cases is taken.

    Args:
        difference: observed mean difference in points, in either direction.
        deviation: standard deviation of one dataset's difference.
        n: number of datasets that the pair shares.
        significance: one-sided p-value at which a method is excluded.

    Returns:
        At most ``LARGEST_COUNT``; ``None`` with fewer than two datasets.
    """
    if n < 2:
        return None
    needed = _datasets_for(abs(difference), deviation, 1 - significance, POWER)
    # If the difference is near 0, the interval may leave the range on either side. The probability of a miss is
    # 1 - POWER, and each side gets half of it.
    distance = smallest_difference - abs(difference)
    needed = min(needed, _datasets_for(distance, deviation, (1 + CONFIDENCE) / 2, (1 + POWER) / 2))
    return min(max(needed, n + 1, MIN_DATASETS) - n, LARGEST_COUNT)


def more_seeds(
    difference: float, deviation: float, differences_DS: Floats, *, significance: float, smallest_difference: float
) -> int | None:
    """Return the estimated number of further seeds on the same datasets that settle a pair with a probability of 80 %.

    A pair is settled as in :func:`more_datasets`. A dataset's difference is a mean over seeds. Its variance is the sum
    of a part between datasets and a part between seeds. More seeds reduce the part between seeds only.

    Args:
        differences_DS: the differences by dataset and seed; NaN if there is none.

    Returns:
        ``None`` if the part between datasets is at least as large as the part between seeds, or so large that no number
        of seeds settles the pair. ``None`` also if more than ``LARGEST_COUNT`` further seeds are needed, if there are
        fewer than ``MIN_DATASETS`` datasets, or if no dataset has two seeds.
    """
    seeds_D = np.isfinite(differences_DS).sum(axis=1)
    several = seeds_D > 1
    n = int((seeds_D > 0).sum())
    if n < MIN_DATASETS or not several.any():
        return None
    by_seed = float(np.nanvar(differences_DS[several], axis=1, ddof=1).mean())
    seeds = float(seeds_D[seeds_D > 0].mean())
    by_dataset = max(deviation**2 - by_seed / seeds, 0.0)
    distance = abs(difference)
    reach = max(
        distance / _detectable(1 - significance, POWER)[n - 2],
        (smallest_difference - distance) / _detectable((1 + CONFIDENCE) / 2, (1 + POWER) / 2)[n - 2],
    )
    if by_dataset >= min(reach**2, by_seed / seeds):
        return None
    needed = max(math.ceil(by_seed / (reach**2 - by_dataset) - seeds), 1)
    return needed if needed <= LARGEST_COUNT else None


def _datasets_for(distance: float, deviation: float, confidence: float, power: float) -> int:
    """Return how many datasets a t test at ``confidence`` needs to detect ``distance`` with the probability ``power``.

    This is the smallest N of 2, 3, ... that is enough by the formula in :func:`more_datasets`, or
    ``2 * LARGEST_COUNT`` if no smaller N is enough.
    """
    if distance <= 0:
        return 2 * LARGEST_COUNT
    return int(np.searchsorted(-_detectable(confidence, power), -distance / deviation)) + 2 if deviation else 2


@cache
def _detectable(confidence: float, power: float) -> Floats:
    """Return the smallest effect that a test at ``confidence`` detects on N = 2, 3, ... datasets.

    The test detects this effect with the probability ``power``. The effect is a mean difference divided by the standard
    deviation of one dataset's difference. It falls with N.
    """
    n = np.arange(2, 2 * LARGEST_COUNT)
    return np.asarray((stdtrit(n - 1, confidence) + stdtrit(n - 1, power)) / np.sqrt(n))


def _score_array(scores: Sequence[Mapping[tuple[str, int], float]]) -> Floats:
    """Return the accuracies as an array (M, D, S), with NaN in the place of a missing accuracy."""
    datasets = {name: place for place, name in enumerate(sorted({dataset for own in scores for dataset, _ in own}))}
    seeds = {name: place for place, name in enumerate(sorted({seed for own in scores for _, seed in own}))}
    scores_MDS = np.full((len(scores), len(datasets), len(seeds)), np.nan)
    for m, own in enumerate(scores):
        for (dataset, seed), score in own.items():
            scores_MDS[m, datasets[dataset], seeds[seed]] = score
    return scores_MDS


def mean_over_seeds(values: Floats) -> Floats:
    """Return the mean over the last axis, without the NaN values; NaN if all values are NaN."""
    n = np.isfinite(values).sum(axis=-1)
    return np.asarray(np.divide(np.nansum(values, axis=-1), n, out=np.full(n.shape, np.nan), where=n > 0))
