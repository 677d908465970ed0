"""Logistic regression on frozen features, from scratch: the linear probe of CLIP's paper (Radford et al., 2021).

The weights know nothing of the text: they start at zero, and an L2 penalty holds them there (scikit-learn's L-BFGS, on
the normalised un-augmented features). With few images per class it is usually below zero-shot; it says what the labels
alone are worth.

C, the inverse strength of the penalty, is searched as LP++'s official code does, but without a label beyond the
support's: over powers of a hundred, then by halving an interval of its logarithm. There a validation split scores each
candidate; here stratified cross-validation on the support does, and of equals the smallest C is taken. With one
image in some class there is nothing to leave out: ``one_shot_c`` is used, and ``details`` say so.

A class without an image is never predicted. Where all images are of one class, everything is.

Shape legend: N support images, B queries, C classes, D joint embedding width, P classes with an image.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bolt.methods.base import Method, register
from bolt.methods.common.frozen_features import unit_support_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task

COARSE = (1e6, 1e4, 1e2, 1.0, 1e-2, 1e-4, 1e-6)
_HALVINGS = 8

Features = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class LogisticProbeSettings:
    """Attributes:
    c: inverse strength of the penalty; searched by default.
    one_shot_c: the one used where a class has one image and nothing can be left out.
    folds: of the cross-validation, fewer where a class has fewer images.
    max_iterations: of L-BFGS.
    """

    c: float | None = None
    one_shot_c: float = 1.0
    folds: int = 4
    max_iterations: int = 1000

    def __post_init__(self) -> None:
        if not self.one_shot_c > 0 or (self.c is not None and not self.c > 0):
            raise ValueError("c and one_shot_c are positive")
        if self.folds < 2 or self.max_iterations < 1:
            raise ValueError("folds is at least 2 and max_iterations at least 1")


@dataclass(frozen=True)
class Fitted:
    """A fitted regression over the classes that have an image.

    Attributes:
        classes: their numbers, (P,).
        weights, biases: (P, D) and (P,).
        converged: whether L-BFGS said so within its iterations.
    """

    classes: Labels
    weights: Features
    biases: Features
    converged: bool

    def predict(self, data_ND: Features) -> Labels:
        """The most likely class of each row."""
        predicted: Labels = self.classes[(data_ND @ self.weights.T + self.biases).argmax(axis=1)]
        return predicted

    def for_all_classes(self, class_count: int) -> tuple[Tensor, Tensor]:
        """Weights (C, D) and biases (C,) over all classes.

        A class without an image gets a logit below any that a unit feature can bring to the others.
        """
        reach = float((np.linalg.norm(self.weights, axis=1) + np.abs(self.biases)).max())
        weight_CD = torch.zeros(class_count, self.weights.shape[1])
        bias_C = torch.full((class_count,), -2 * reach - 1)
        weight_CD[self.classes] = torch.from_numpy(self.weights).float()
        bias_C[self.classes] = torch.from_numpy(self.biases).float()
        return weight_CD, bias_C


def fit_logistic(data_ND: Features, labels_N: Labels, c: float, max_iterations: int) -> Fitted:
    """Fit all rows. One class is a constant; two or more are scikit-learn's, with as many threads as torch has."""
    classes = np.unique(labels_N)
    if len(classes) == 1:
        return Fitted(classes, np.zeros((1, data_ND.shape[1])), np.zeros(1), converged=True)
    import threadpoolctl
    from sklearn.exceptions import ConvergenceWarning  # a second to import, and few methods need it
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, max_iter=max_iterations)
    # Sums depend on how they are split among threads.
    with threadpoolctl.threadpool_limits(torch.get_num_threads()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(data_ND, labels_N)
    others = [warning for warning in caught if not issubclass(warning.category, ConvergenceWarning)]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    weights, biases = model.coef_, model.intercept_
    if len(classes) == 2:  # one row there, the second class's log-odds
        weights, biases = np.concatenate([-weights, weights]) / 2, np.concatenate([-biases, biases]) / 2
    return Fitted(classes, weights, biases, converged=len(caught) == len(others))


def stratified_folds(labels_N: Labels, folds: int) -> Labels:
    """The fold of each image, such that every class is spread evenly: its images are dealt out in turn."""
    fold_N = np.empty_like(labels_N)
    for label in np.unique(labels_N):
        members = np.flatnonzero(labels_N == label)
        fold_N[members] = np.arange(len(members)) % folds
    return fold_N


def cross_validated_correct(data_ND: Features, labels_N: Labels, fold_N: Labels, c: float, max_iterations: int) -> int:
    """How many images are classified correctly by what the other folds teach."""
    correct = 0
    for fold in np.unique(fold_N):
        held_out = fold_N == fold
        fitted = fit_logistic(data_ND[~held_out], labels_N[~held_out], c, max_iterations)
        correct += int((fitted.predict(data_ND[held_out]) == labels_N[held_out]).sum())
    return correct


def search_c(score: Callable[[float], int]) -> float:
    """The best C: of a coarse grid, then of an interval about it that is halved 8 times; of equals the smallest.

    The interval spans a tenth to ten times the coarse winner. Each time its middle, on the logarithm, takes the place
    of the end that scores worse.
    """
    scores = {c: score(c) for c in COARSE}
    low, high = (math.log10(_best(scores)) + step for step in (-1, 1))
    for _ in range(_HALVINGS):
        for end in (low, high):
            if 10**end not in scores:
                scores[10**end] = score(10**end)
        middle = (low + high) / 2
        low, high = (low, middle) if scores[10**low] >= scores[10**high] else (middle, high)
    return _best(scores)


def _best(scores: dict[float, int]) -> float:
    return max(scores, key=lambda c: (scores[c], -c))


def adapt(task: Task, settings: LogisticProbeSettings) -> Adapted:
    """Choose C, then fit the whole support."""
    features_ND = unit_support_features(task, EVALUATION_VIEW)
    data_ND, labels_N = features_ND.cpu().double().numpy(), task.support.labels_N.cpu().numpy()
    c, chosen = _choose(data_ND, labels_N, settings)
    fitted = fit_logistic(data_ND, labels_N, c, settings.max_iterations)
    weight_CD, bias_C = (part.to(features_ND) for part in fitted.for_all_classes(len(task.head_CD)))
    return Adapted(
        LinearClassifier(weight_CD, bias_C),
        trainable_parameters=weight_CD.numel() + bias_C.numel(),
        details={"c": c, "search": chosen, "converged": "yes" if fitted.converged else "no"},
    )


def _choose(data_ND: Features, labels_N: Labels, settings: LogisticProbeSettings) -> tuple[float, str]:
    """C, and in words how it was chosen."""
    if settings.c is not None:
        return settings.c, "fixed"
    counts = np.unique(labels_N, return_counts=True)[1]
    if len(counts) == 1:
        return settings.one_shot_c, "fixed: one class, nothing to tell apart"
    fewest = int(counts.min())
    if fewest < 2:
        return settings.one_shot_c, "fixed: a class has one image, none to leave out"
    folds = min(settings.folds, fewest)
    fold_N = stratified_folds(labels_N, folds)
    best = search_c(lambda c: cross_validated_correct(data_ND, labels_N, fold_N, c, settings.max_iterations))
    return best, f"cross-validation, {folds} folds"


register(
    Method(
        name="logistic_probe",
        title="Logistic regression probe",
        paper="https://arxiv.org/abs/2103.00020",
        settings_class=LogisticProbeSettings,
        adapt=adapt,
        support_feature_views=lambda settings: EVALUATION_VIEW,
    )
)
