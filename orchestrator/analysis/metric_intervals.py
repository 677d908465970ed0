"""95 % intervals of the metrics of one test split.

The test images are a sample, and an interval estimates the metric on all images of their kind.
``benchmarks/coverage.py`` measures how often the intervals contain this true value. Two metrics have no interval. The
calibration error is biased upwards if images are few. The share that can be labelled at 95 % accuracy can change much
with a single image.

Shape legend: N images, C classes that occur among the labels, G groups.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from orchestrator.analysis.metrics import METRICS, Answers, Metric
from orchestrator.core.intervals import largest_unseen, wilson_interval
from orchestrator.tracks import MetricName

GROUPS = 20
"""Number of groups of images. The jackknife leaves out one group at a time."""
WITHOUT_INTERVAL: frozenset[MetricName] = frozenset({"calibration_error", "share_at_95"})


def intervals(answers: Answers) -> dict[MetricName, tuple[float, float] | None]:
    """Return the 95 % interval of every metric in per cent; ``None`` for a metric without one.

    The interval of the accuracy is Wilson's. The interval of the worst class combines Wilson's intervals of all
    classes, because any class may be the worst (:func:`_of_worst_class`). All other intervals are from Student's t with
    a jackknife over groups of images.
    """
    images, parts = len(answers.labels_N), jackknife_parts(answers)
    found: dict[MetricName, tuple[float, float] | None] = {}
    for name, metric in METRICS.items():
        if name in WITHOUT_INTERVAL or len(parts) < 2:
            found[name] = None
        elif name == "accuracy":
            found[name] = wilson_interval(float(answers.correct_N.mean()), images)
        elif name == "worst_class":
            found[name] = _of_worst_class(answers)
        else:
            found[name] = jackknife_interval(metric, answers, parts)
    return found


def jackknife_parts(answers: Answers) -> list[Answers]:
    """Return, for each group of images, the predictions without this group."""
    group_N = _groups(answers.labels_N)
    return [_without(answers, group_N == group) for group in range(min(GROUPS, len(group_N)))]


def jackknife_interval(metric: Metric, answers: Answers, parts: Sequence[Answers]) -> tuple[float, float]:
    """Return the interval of a metric from its values on ``parts``, each of which lacks one group of images.

    Equal values on all parts, such as 100 %, do not show that new images would give this value too. The interval then
    allows for a share of images that was never seen (``largest_unseen``), given half of the images. A mean over classes
    depends on the images of small classes, so it is given fewer.
    """
    values_G = np.array([metric.of(part) for part in parts])
    spread = math.sqrt((len(parts) - 1) / len(parts) * float(((values_G - values_G.mean()) ** 2).sum()))
    half, value = float(stdtrit(len(parts) - 1, 0.975)) * spread, metric.of(answers)
    if half <= 1e-9:
        sizes_C = np.unique(answers.labels_N, return_counts=True)[1]
        sizes_C = sizes_C if metric.averages_classes else sizes_C.sum(keepdims=True)
        half = largest_unseen(min(len(answers.labels_N) / 2, len(sizes_C) ** 2 / (1 / sizes_C).sum()))
    return max(0.0, value - half), min(100.0, value + half)


def _groups(labels_N: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a random group for each image. The images of each class are spread over the groups."""
    order_N = np.random.default_rng(0).permutation(len(labels_N))
    order_N = order_N[np.argsort(labels_N[order_N], kind="stable")]
    group_N = np.empty(len(labels_N), dtype=np.int64)
    group_N[order_N] = np.arange(len(labels_N)) % GROUPS
    return group_N


def _without(answers: Answers, left_out_N: NDArray[np.bool_]) -> Answers:
    kept_N = ~left_out_N
    return Answers(answers.labels_N[kept_N], answers.predicted_N[kept_N], answers.probability_N[kept_N])


def _of_worst_class(answers: Answers) -> tuple[float, float]:
    """Return an interval of the lowest recall of any class, made from one interval for the recall of each class.

    It goes from the smallest lower end of these intervals to their smallest upper end. The lowest recall is below this
    range only if the recall of the worst class is below the interval of that class. The lowest recall is above this
    range only if the class with the smallest upper end has a recall above that end. This can be any of the C classes,
    so the upper ends allow for C comparisons.
    """
    totals_C, hits_C = np.bincount(answers.labels_N), np.bincount(answers.labels_N, weights=answers.correct_N)
    counts = [(hits / total, int(total)) for hits, total in zip(hits_C, totals_C, strict=True) if total]
    lower = min(wilson_interval(share, total)[0] for share, total in counts)
    return lower, min(wilson_interval(share, total, comparisons=len(counts))[1] for share, total in counts)
