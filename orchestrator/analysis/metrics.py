"""Metrics of stored predictions: accuracy over images and classes, and the calibration of probabilities.

A store keeps the predicted class of every test image and the probability of this class. So no cell needs to run
again for a metric. Calibration is computed for the predicted class only, because no other probability is stored.
Values are in per cent.

Shape legend: N images, C classes that occur among the labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from orchestrator.store.predictions import FULL_PROBABILITY, StoredPredictions
from orchestrator.tracks import MetricName, Track
from orchestrator.tracks.base import ARITHMETIC_MEAN, GroupMean

BINS = 15
"""Number of bins, of equal width, of the expected calibration error; 15 is usual."""
WANTED = 0.95
"""The required accuracy in :func:`share_at_95`."""


@dataclass(frozen=True, eq=False)
class Answers:
    """The predictions of one test split.

    Attributes:
        labels_N, predicted_N: true and predicted classes.
        probability_N: probability of the predicted class, in [0, 1].
    """

    labels_N: NDArray[np.int64]
    predicted_N: NDArray[np.int64]
    probability_N: NDArray[np.float64]

    @classmethod
    def of(cls, stored: StoredPredictions) -> Answers:
        """Return the predictions from their form in a store, where probabilities are in units of 1/255."""
        labels_N, predicted_N = stored.labels.astype(np.int64), stored.predicted.astype(np.int64)
        return cls(labels_N, predicted_N, stored.probability / FULL_PROBABILITY)

    @property
    def correct_N(self) -> NDArray[np.float64]:
        """1 for a correct prediction, else 0."""
        return np.asarray(self.labels_N == self.predicted_N, dtype=np.float64)


def accuracy(answers: Answers) -> float:
    """Return the share of images that are classified correctly."""
    return 100 * float(answers.correct_N.mean())


def recalls(answers: Answers) -> NDArray[np.float64]:
    """Return the recall of each class: the share of its images that are classified correctly, (C,)."""
    totals = np.bincount(answers.labels_N)
    hits = np.bincount(answers.labels_N, weights=answers.correct_N)
    return np.asarray(hits[totals > 0] / totals[totals > 0])


def balanced_accuracy(answers: Answers) -> float:
    """Return the mean recall over the classes that occur, so that a rare class counts as much as a frequent one."""
    return 100 * float(recalls(answers).mean())


def worst_class(answers: Answers) -> float:
    """Return the lowest recall of a class."""
    return 100 * float(recalls(answers).min())


def macro_f1(answers: Answers) -> float:
    """Return the mean F1 over all classes that are a label or a prediction."""
    size = int(max(answers.labels_N.max(), answers.predicted_N.max())) + 1
    hits = np.bincount(answers.labels_N, weights=answers.correct_N, minlength=size)
    labels, predicted = (np.bincount(x, minlength=size) for x in (answers.labels_N, answers.predicted_N))
    present = labels + predicted > 0
    return 100 * float((2 * hits[present] / (labels + predicted)[present]).mean())


def calibration_error(answers: Answers) -> float:
    """Return the expected calibration error: the mean gap between probability and accuracy over bins of probability."""
    bin_N = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], answers.probability_N, side="right")  # 1 is in the last
    gaps = np.bincount(bin_N, weights=answers.correct_N - answers.probability_N)
    return 100 * float(np.abs(gaps).sum() / len(bin_N))


def brier(answers: Answers) -> float:
    """Return the mean of (p - c) ** 2: p is the probability of the predicted class; c is 1 if it is right, else 0."""
    return 100 * float(((answers.probability_N - answers.correct_N) ** 2).mean())


def accuracy_of_surest(answers: Answers, share: float) -> float:
    """Return the accuracy on the given share of the images, those with the highest probabilities.

    If only some of several equally probable images fit into the share, their mean accuracy is used.
    """
    count = max(1, round(share * len(answers.labels_N)))
    totals, hits = _by_probability(answers)
    taken = np.diff(np.minimum(np.concatenate([[0], totals.cumsum()]), count))
    return 100 * float((taken * hits / totals).sum() / count)


def share_at_95(answers: Answers) -> float:
    """Return the largest share of images, per cent, of which at least 95 % are classified correctly.

    The share takes the images of highest probability first. Images of equal probability are in it together or not at
    all.
    """
    totals, hits = _by_probability(answers)
    reached = np.flatnonzero(hits.cumsum() >= WANTED * totals.cumsum())
    return 100 * float(totals[: reached[-1] + 1].sum() / totals.sum()) if len(reached) else 0.0


def _by_probability(answers: Answers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the numbers of images and of correct images with each probability, the highest probability first."""
    _, place_N = np.unique(-answers.probability_N, return_inverse=True)
    totals, hits = np.bincount(place_N), np.bincount(place_N, weights=answers.correct_N)
    return totals.astype(np.float64), hits.astype(np.float64)


@dataclass(frozen=True)
class Metric:
    """A metric of a test split, in per cent.

    Attributes:
        title: the name in tables and figures.
        of: computes the value from the predictions.
        of_recalls: computes the value from the recalls of the classes, which every result has; ``None`` if the metric
            needs the predictions.
        lower_is_better: whether the best method has the smallest value.
        averages_classes: whether the value is a mean over classes, so that the images of a small class weigh more.
    """

    title: str
    of: Callable[[Answers], float]
    of_recalls: Callable[[NDArray[np.float64]], float] | None = None
    lower_is_better: bool = False
    averages_classes: bool = False

    def group_mean(self, track: Track) -> GroupMean | None:
        """Return the mean over the class groups of a track; ``None`` on a track without groups.

        For a metric that is an error, this is the arithmetic mean, because a harmonic mean would hide a large error
        behind a small one. For other metrics, it is the mean that the track states.
        """
        return ARITHMETIC_MEAN if track.group_mean and self.lower_is_better else track.group_mean

    @property
    def sign(self) -> int:
        """1, or -1 if lower values are better."""
        return -1 if self.lower_is_better else 1

    @property
    def heading(self) -> str:
        """The title with a capital letter."""
        return self.title[0].upper() + self.title[1:]

    @property
    def in_per_cent(self) -> str:
        """The unit of values in notes and captions, with ``(lower is better)`` if the best value is the lowest."""
        return "in per cent (lower is better)" if self.lower_is_better else "in per cent"

    def averaged_on(self, track: Track) -> str:
        """Return words for the value that each dataset contributes to a mean over datasets.

        The value is the metric. On a track with class groups, it is the mean over the groups, such as ``harmonic mean
        of the accuracy on base classes and new classes``.
        """
        mean = self.group_mean(track)
        return f"{mean.name} of the {self.title} on {' and '.join(track.class_groups)}" if mean else self.title


METRICS: Mapping[MetricName, Metric] = {
    "accuracy": Metric("accuracy", accuracy),
    "balanced_accuracy": Metric(
        "balanced accuracy", balanced_accuracy, lambda recalls_C: 100 * float(recalls_C.mean()), averages_classes=True
    ),
    "macro_f1": Metric("macro F1", macro_f1, averages_classes=True),
    "worst_class": Metric("accuracy of the worst class", worst_class, lambda recalls_C: 100 * float(recalls_C.min())),
    "calibration_error": Metric("calibration error", calibration_error, lower_is_better=True),
    "brier": Metric("Brier score", brier, lower_is_better=True),
    "accuracy_surest_50": Metric("accuracy on the surest half", lambda answers: accuracy_of_surest(answers, 0.5)),
    "accuracy_surest_80": Metric("accuracy on the surest 80 %", lambda answers: accuracy_of_surest(answers, 0.8)),
    "share_at_95": Metric("share labelled at 95 % accuracy", share_at_95),
}
"""Name -> metric. A new metric needs a function, a line here and its name in ``MetricName``."""
