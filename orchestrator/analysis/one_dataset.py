"""The best set on one dataset: the methods that may be the best, from the predictions on its test images.

Every method predicts the same test images under the same seeds, so two methods give a table of differences in
correctness, seeds x images. The support images (the seed) and the test images are both samples, so both are sources of
variance:

    D_si = difference + seed_s + image_i + rest_si        (two crossed random effects, one value per seed and image)

The variance of the mean of D is estimated from the mean squares of seeds, images and rest, as in Obuchowski and
Rockette (Communications in Statistics - Simulation and Computation 24, 1995) and Gallas (Academic Radiology 13, 2006),
who compare readers on the same cases. The variance is the sum of a part for the seeds and a part for the images, with
S - 1 and N - 1 degrees of freedom. Each part has its t quantile. Tests and intervals use the mean of the two quantiles,
weighted with the parts (Cochran and Cox, Experimental Designs, 1957). The usual choice is one t quantile with
Satterthwaite's degrees of freedom. With 2 and 3 seeds, its 95 % intervals contain the true difference in as few as 92 %
of draws (``benchmarks/coverage.py``).

The result says nothing about other datasets, nor about another training part of this one: every seed draws from the
same images. With one seed it says nothing about other support images either.

Shape legend: S seeds, N test images, P pairs of methods.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from orchestrator.analysis import CONFIDENCE, LARGEST_COUNT, POWER, SMALLEST_DIFFERENCE
from orchestrator.analysis.comparison import by_pair, eliminate, make_verdict, pairwise_test
from orchestrator.analysis.paired_tests import Floats, PairedTests, t_values
from orchestrator.analysis.rows import Row
from orchestrator.analysis.verdict import MethodScore, Verdict
from orchestrator.core.intervals import largest_unseen
from orchestrator.store.predictions import StoredPredictions

MIN_IMAGES = 2

Correct = NDArray[np.bool_] | Floats
"""A value for each test image: whether the image was classified correctly or, for balanced accuracy, what the image
contributes to the metric. The shape is (N,), or (S, N) for S seeds."""


@dataclass(frozen=True)
class VarianceParts:
    """The parts of the variance of a paired difference on one dataset (the terms of D_si in the module's docstring).

    Attributes:
        difference: mean difference in correctness, between -1 and 1.
        seed_square, image_square, rest_square: mean squares of the table of differences, seeds x images. With one seed,
            only the image square can be estimated, and the seed and rest squares are 0.
        seeds, images: size of the table.
    """

    difference: float
    seed_square: float
    image_square: float
    rest_square: float
    seeds: int
    images: int

    @property
    def seed_part(self) -> float:
        """What the seeds add to :attr:`variance`, before the division by ``seeds * images``."""
        return max(self.seed_square, self.rest_square)

    @property
    def image_part(self) -> float:
        """What the images add to :attr:`variance`, before the division by ``seeds * images``."""
        return max(self.image_square - self.rest_square, 0.0)

    @property
    def variance(self) -> float:
        """Estimated variance of ``difference`` over new seeds and new images."""
        return (self.seed_part + self.image_part) / (self.seeds * self.images)

    @property
    def seed_share(self) -> float:
        """The fraction of :attr:`variance` that does not come from the images, from 0 to 1."""
        whole = self.seed_part + self.image_part
        return self.seed_part / whole if whole else 0.0

    def more_seeds(self, significance: float, smallest_difference: float) -> int | None:
        """Return the estimated number of further seeds that settle the pair with a probability of 80 %.

        ``None`` with one seed, or without any variance. Also ``None`` if ``LARGEST_COUNT`` further seeds would not
        suffice, because the test images are too few or the seeds differ too much.

        Args:
            significance: one-sided p-value at which a method is excluded.
            smallest_difference: the smallest difference that matters, between 0 and 1.
        """
        if self.seeds == 1 or not self.variance:
            return None
        seeds = np.unique(np.geomspace(self.seeds + 1, self.seeds + LARGEST_COUNT, 200).round())
        whole = self.seed_part + self.image_part * seeds / self.seeds  # more seeds do not reduce the images' variance
        share = np.divide(self.seed_part, whole, out=np.zeros_like(whole), where=whole > 0)

        def reach(confidence: float, power: float) -> Floats:
            """Return, for each number of seeds, how far from a limit a difference must be.

            At that distance, the interval of the difference excludes the limit with the probability ``power``.
            ``confidence``: the one-sided level of the interval.
            """
            quantile = t_quantile(confidence, share, seeds, self.images) + t_quantile(power, share, seeds, self.images)
            return np.asarray(quantile * np.sqrt(whole / (seeds * self.images)))

        distance = abs(self.difference)
        settled = (distance >= reach(1 - significance, POWER)) | (
            smallest_difference - distance >= reach((1 + CONFIDENCE) / 2, (1 + POWER) / 2)
        )
        return int(seeds[settled.argmax()]) - self.seeds if settled.any() else None


def t_quantile(probability: float | Floats, seed_share: Floats, seeds: Floats, images: int | Floats) -> Floats:
    """Return Cochran and Cox's quantile: the mean of the seeds' and images' t quantiles, weighted by ``seed_share``."""
    seed_quantile = stdtrit(np.maximum(seeds - 1, 1), probability)
    image_quantile = stdtrit(np.maximum(images - 1, 1), probability)
    return np.asarray(seed_share * seed_quantile + (1 - seed_share) * image_quantile)


def one_sided_p(t: Floats, seed_share: Floats, seeds: Floats, images: Floats) -> Floats:
    """Return the p for which :func:`t_quantile` of 1 - p is ``t``, found by bisection of log p.

    It is at least 1e-12. It is 1 if ``t`` is NaN.
    """
    low, high = np.full_like(t, math.log(1e-12)), np.full_like(t, math.log(0.5))
    for _ in range(30):
        middle = (low + high) / 2
        beyond = t_quantile(1 - np.exp(middle), seed_share, seeds, images) <= np.abs(t)
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    p = np.where(t >= 0, np.exp(high), 1 - np.exp(high))
    return np.where(np.isnan(t), 1.0, p)


def variance_parts(first_SN: Correct, second_SN: Correct) -> VarianceParts:
    """Return the mean squares of the differences between two tables of correct predictions, seeds x images.

    Raises:
        ValueError: if the tables have different shapes, no seed or fewer than two images.
    """
    if first_SN.shape != second_SN.shape or first_SN.ndim != 2 or len(first_SN) == 0 or first_SN.shape[1] < MIN_IMAGES:
        raise ValueError(
            "two tables (seeds x images) of the same shape are needed, with at least one seed and "
            f"{MIN_IMAGES} images; their shapes are {first_SN.shape}, {second_SN.shape}"
        )
    table_SN = first_SN.astype(np.float64) - second_SN
    seeds, images = table_SN.shape
    mean, seed_S, image_N = table_SN.mean(), table_SN.mean(axis=1), table_SN.mean(axis=0)
    seed_sum, image_sum = images * ((seed_S - mean) ** 2).sum(), seeds * ((image_N - mean) ** 2).sum()
    rest_sum = max(((table_SN - mean) ** 2).sum() - seed_sum - image_sum, 0.0)
    return VarianceParts(
        difference=float(mean),
        seed_square=float(seed_sum / max(seeds - 1, 1)),
        image_square=float(image_sum / (images - 1)),
        rest_square=float(rest_sum / max((seeds - 1) * (images - 1), 1)),
        seeds=seeds,
        images=images,
    )


def correct_by_method(
    rows: Sequence[Row], predictions: Mapping[str, Sequence[StoredPredictions]]
) -> dict[str, dict[int, Correct]] | None:
    """Return whether each test image was classified correctly, (N,), by method and seed.

    If the metric is balanced accuracy, the contribution of each image is returned instead (:func:`balanced`).

    Args:
        rows: the rows of one test split under one track, protocol and backbone, at one k.
        predictions: by cell id. A cell without predictions is left out.

    Returns:
        ``None`` if the methods cannot be compared image by image. This is so if a method has no predictions at all, if
        there are fewer than two images, or if the cells were scored on different images. The images differ if the
        protocol draws the support from the test split.
    """
    correct: dict[str, dict[int, Correct]] = {row.method: {} for row in rows}
    images = set()
    for row in rows:
        for split in predictions.get(row.cell_id, ()):
            if split.dataset == row.evaluated_on:
                correct[row.method][row.seed] = split.correct
                images.add((split.labels.tobytes(), b"" if split.rows is None else split.rows.tobytes()))
    if len(images) != 1 or not all(correct.values()) or rows[0].total < MIN_IMAGES:
        return None
    if rows[0].metric != "balanced_accuracy":
        return correct
    labels_N = np.frombuffer(next(iter(images))[0], dtype=np.uint16)
    return {method: balanced(own, labels_N) for method, own in correct.items()}


def balanced(correct: Mapping[int, Correct], labels_N: NDArray[np.uint16]) -> dict[int, Correct]:
    """Return, for each seed, the contributions (N,) of the test images to the balanced accuracy of a method.

    The mean of the contributions is the balanced accuracy of the seed. An image of a small class counts more: its
    weight is inverse to the size of its class.

    An image's value is 1 if it is classified correctly, else 0. Before it is weighted, the mean recall of its class
    over the seeds is subtracted; afterwards, the mean balanced accuracy of the seeds is added. So differences between
    the recalls of classes do not count as variance between images: another sample of images would have the same
    classes.

    The n images of a small class scatter less around their own recall than new images would. So within each class and
    seed, the distances from the recall of that seed are multiplied by the root of n / (n - 1). They are divided by the
    root of N / (N - 1), because :func:`variance_parts` already corrects for N images: it divides by N - 1, not by N.
    The image of a class with a single image does not scatter at all. So all such classes count as one class here.
    """
    _, class_N, sizes_C = np.unique(labels_N, return_inverse=True, return_counts=True)
    values_SN = np.stack(list(correct.values())).astype(np.float64)
    weight_N = len(labels_N) / (len(sizes_C) * sizes_C[class_N])
    group_N = np.where(sizes_C[class_N] == 1, len(sizes_C), class_N)
    sizes_N = np.bincount(group_N)[group_N]
    recall_SN = np.stack([np.bincount(group_N, weights=row)[group_N] for row in values_SN]) / sizes_N
    mean_N = recall_SN.mean(axis=0)
    scale_N = np.sqrt(sizes_N / np.maximum(sizes_N - 1, 1) * (1 - 1 / len(labels_N)))
    distance_SN = scale_N * (values_SN - recall_SN) + recall_SN - mean_N
    return dict(zip(correct, weight_N * distance_SN + (weight_N * mean_N).mean(), strict=True))


def best_set_on_dataset(
    correct: Mapping[str, Mapping[int, Correct]],
    without_seeds: Collection[str] = (),
    smallest_difference: float = SMALLEST_DIFFERENCE,
) -> Verdict:
    """Compare methods on one dataset. Each pair of methods is compared on the seeds that both have.

    If a pair shares two seeds or more, the verdict is about the dataset, and pairs that share one seed are not
    tested. If no pair shares more than one seed, the verdict is only about these support images (scope ``draw``).
    Two methods that draw nothing at random need no seeds: they are always tested. If all methods are like that, the
    verdict is about the dataset.

    Args:
        correct: by method and seed, the value of each test image as :func:`correct_by_method` returns it.
        without_seeds: methods that draw nothing at random. Their single entry is compared with every seed of the other
            methods.

    Raises:
        ValueError: if methods were measured on different numbers of images, or on fewer than two.
    """
    methods = [method for method, own in correct.items() if own]
    seeds = [set() if method in without_seeds else set(correct[method]) for method in methods]
    parts: list[VarianceParts | None] = []
    seeded: list[bool] = []
    for i, j in combinations(range(len(methods)), 2):
        drawn = [own for own in (seeds[i], seeds[j]) if own]
        shared = sorted(set.intersection(*drawn)) if drawn else []
        tables = (_table(correct[methods[place]], shared) for place in (i, j))
        parts.append(variance_parts(*tables) if shared or not drawn else None)
        seeded.append(bool(drawn))
    scores = [_score(method, correct[method], len(own)) for method, own in zip(methods, seeds, strict=True)]
    tests = _tests(parts)
    seeded_P = np.array(seeded, dtype=bool)
    about_draw = bool(seeded_P.any()) and int(tests.n[seeded_P].max()) < 2
    usable_P = (tests.n > 1) | ((tests.n == 1) & (~seeded_P | about_draw))

    def more(place: int, significance: float) -> tuple[int | None, None]:
        """Return the estimated number of further seeds that settle the pair at ``place``, and ``None``.

        ``None`` stands for ``more_seeds``, which only a verdict over several datasets has.
        """
        pair = parts[place]
        return pair.more_seeds(significance, smallest_difference / 100) if pair else None, None

    p_MM = by_pair(len(methods), tests.p_first, tests.p_second, 1.0)
    usable_MM = by_pair(len(methods), usable_P, usable_P, False)
    return make_verdict(
        scores,
        tests,
        usable_P,
        eliminate(len(methods), pairwise_test(p_MM, usable_MM)),
        more,
        scope="draw" if about_draw else "dataset",
        images=max((len(row) for method in methods for row in correct[method].values()), default=0),
        smallest_difference=smallest_difference,
    )


def _table(correct: Mapping[int, Correct], seeds: Sequence[int]) -> Floats:
    """Return a method's values as a table with a row for each of ``seeds``, (S, N).

    A method without seeds has the same row for each seed.
    """
    only = next(iter(correct.values()))
    return np.stack([correct.get(seed, only) for seed in seeds] or [only]).astype(np.float64)


def _score(method: str, correct: Mapping[int, Correct], seeds: int) -> MethodScore:
    accuracies = [100 * float(row.mean()) for row in correct.values()]
    return MethodScore(method, math.fsum(accuracies) / len(accuracies), len(accuracies), seeds)


def _tests(parts: Sequence[VarianceParts | None]) -> PairedTests:
    """Return the t-test of each pair, in points; NaN and p = 1 for a pair without a shared seed."""
    difference, error = np.full((2, len(parts)), np.nan)
    share, seeds, images = np.zeros((3, len(parts)))
    for row, pair in enumerate(parts):
        if pair is not None:
            difference[row], error[row] = 100 * pair.difference, 100 * math.sqrt(pair.variance)
            share[row], seeds[row], images[row] = pair.seed_share, pair.seeds, pair.images
    quantile = t_quantile((1 + CONFIDENCE) / 2, share, seeds, images)
    unseen = largest_unseen(np.maximum(images, 1)) / quantile
    error = np.where(error <= 1e-9, unseen, error)  # few images may show no scatter
    t, half = t_values(difference, error), quantile * error
    return PairedTests(
        difference=difference,
        lower=difference - half,
        upper=difference + half,
        p_first=one_sided_p(t, share, seeds, images),
        p_second=one_sided_p(-t, share, seeds, images),
        deviation=error * np.sqrt(np.maximum(seeds, 1)),
        n=seeds.astype(int),
    )
