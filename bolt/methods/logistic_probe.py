"""Logistic regression on frozen features, from scratch: the linear probe of the CLIP paper (Radford et al., 2021).

The weights start at zero, and the text is not used. An L2 penalty keeps the weights small. scikit-learn's L-BFGS fits
them on normalised, un-augmented features. With few images per class the accuracy is usually below zero-shot. It shows
how much can be learned from the labels alone.

The inverse strength C of the penalty is searched as in LP++'s official code: over powers of a hundred, then by halving
an interval of log C. That code scores each candidate on a validation split. Here the score is stratified
cross-validation on the support. With few images many values of C are equally good, from 1e-7 to 1e7. Of these, the
search takes the value nearest to ``one_shot_c`` on the logarithmic scale.

If some class has a single image, no image can be left out. Then C is ``one_shot_c``, and ``details`` say so. Its value
was chosen on sixteen datasets of drawn pictures, with one training image per class as the support and fifteen others
held out. C = 0.1, 1, 10, 100 and 1,000 gave 39.6, 39.9, 41.2, 41.2 and 40.8 % on the held-out images.

A class without an image is never predicted. If all images belong to one class, that class is always predicted.

Shape legend: N support images, B queries, C classes, D joint embedding width, P classes with an image.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bolt.methods.base import Idle, register
from bolt.methods.common.cross_validation import NO_HOLD_OUT, compared_with_zero_shot, stratified_folds
from bolt.methods.common.frozen_features import unit_support_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import AtLeast1, AtLeast2, Checked, Positive

COARSE_GRID = (1e6, 1e4, 1e2, 1.0, 1e-2, 1e-4, 1e-6)
_HALVINGS = 8

Features = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class LogisticProbeSettings(Checked):
    """The strength of the penalty, and how it is searched.

    Attributes:
        c: inverse strength of the penalty; by default it is searched.
        one_shot_c: the value of ``c`` if a class has a single image, which cannot be left out. Among equally good
            values, a search takes the one nearest to ``one_shot_c``.
        folds: number of cross-validation folds; fewer if a class has fewer images.
        max_iterations: largest number of L-BFGS iterations.
    """

    c: Positive | None = None
    one_shot_c: Positive = 10.0
    folds: AtLeast2 = 4
    max_iterations: AtLeast1 = 1000


@dataclass(frozen=True)
class FittedRegression:
    """A fitted logistic regression over the classes that have an image.

    Attributes:
        classes: indices of the classes that have an image, (P,).
        weights, biases: (P, D) and (P,).
        converged: whether L-BFGS converged within its iterations.
    """

    classes: Labels
    weights: Features
    biases: Features
    converged: bool

    def predict(self, data_ND: Features) -> Labels:
        """Return the most likely class of each row."""
        predicted: Labels = self.classes[(data_ND @ self.weights.T + self.biases).argmax(axis=1)]
        return predicted

    def for_all_classes(self, class_count: int) -> tuple[Tensor, Tensor]:
        """Return the weights (C, D) and biases (C,) of all classes.

        A class without an image gets a constant logit that is lower than every logit of a class with an image.
        """
        largest_logit = float((np.linalg.norm(self.weights, axis=1) + np.abs(self.biases)).max())
        weight_CD = torch.zeros(class_count, self.weights.shape[1])
        bias_C = torch.full((class_count,), -2 * largest_logit - 1)
        weight_CD[self.classes] = torch.from_numpy(self.weights).float()
        bias_C[self.classes] = torch.from_numpy(self.biases).float()
        return weight_CD, bias_C


def fit_logistic(data_ND: Features, labels_N: Labels, c: float, max_iterations: int) -> FittedRegression:
    """Fit a logistic regression with scikit-learn, on as many threads as PyTorch uses."""
    classes = np.unique(labels_N)
    if len(classes) == 1:
        return FittedRegression(classes, np.zeros((1, data_ND.shape[1])), np.zeros(1), converged=True)
    import threadpoolctl
    from sklearn.exceptions import ConvergenceWarning  # takes a second to import; few methods need it
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=c, max_iter=max_iterations)
    # The number of threads is fixed because it changes the order of sums, and so the result.
    with threadpoolctl.threadpool_limits(torch.get_num_threads()), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        warnings.filterwarnings("ignore", message="The number of unique classes")  # few images each are usual
        model.fit(data_ND, labels_N)
    others = [warning for warning in caught if not issubclass(warning.category, ConvergenceWarning)]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    weights, biases = model.coef_, model.intercept_
    if len(classes) == 2:  # scikit-learn returns one row, the log-odds of the second class
        weights, biases = np.concatenate([-weights, weights]) / 2, np.concatenate([-biases, biases]) / 2
    return FittedRegression(classes, weights, biases, converged=len(caught) == len(others))


def cross_validated_correct(data_ND: Features, labels_N: Labels, fold_N: Labels, c: float, max_iterations: int) -> int:
    """Count the images that are classified correctly by a regression fitted on all folds but the image's fold."""
    correct = 0
    for fold in np.unique(fold_N):
        held_out = fold_N == fold
        fitted = fit_logistic(data_ND[~held_out], labels_N[~held_out], c, max_iterations)
        correct += int((fitted.predict(data_ND[held_out]) == labels_N[held_out]).sum())
    return correct


def search_c(score: Callable[[float], int], prior: float) -> tuple[float, int]:
    """Return the C with the highest ``score(C)``, and its score. Ties go to the value nearest to ``prior``.

    The search covers a coarse grid first. The interval from a tenth to ten times the best C of the grid is then halved
    8 times. Each time, the middle on the logarithmic scale replaces the end with the lower score.
    """
    scores = {c: score(c) for c in COARSE_GRID}

    def rank(c: float) -> tuple[int, float]:
        return scores[c], -abs(math.log10(c / prior))

    best = math.log10(max(scores, key=rank))
    low, high = best - 1, best + 1
    for _ in range(_HALVINGS):
        for end in (low, high):
            if 10**end not in scores:
                scores[10**end] = score(10**end)
        middle = (low + high) / 2
        low, high = (low, middle) if rank(10**low) >= rank(10**high) else (middle, high)
    chosen = max(scores, key=rank)
    return chosen, scores[chosen]


@register(
    title="Logistic regression probe",
    palette=8,
    summary="fits logistic regression on frozen features, from scratch",
    paper="https://arxiv.org/abs/2103.00020",
    version=2,
    support_feature_views=lambda settings: EVALUATION_VIEW,
    idle=(Idle(("one_shot_c", "folds"), {"c": None}),),
)
def adapt(task: Task, settings: LogisticProbeSettings) -> Adapted:
    """Choose C, then fit the whole support."""
    features_ND = unit_support_features(task, EVALUATION_VIEW)
    data_ND, labels_N = features_ND.cpu().double().numpy(), task.support.labels_N.cpu().numpy()
    c, correct, chosen = _choose(data_ND, labels_N, settings)
    fitted = fit_logistic(data_ND, labels_N, c, settings.max_iterations)
    weight_CD, bias_C = (part.to(features_ND) for part in fitted.for_all_classes(len(task.head_CD)))
    details: dict[str, float | str] = {"c": c, "search": chosen, "converged": "yes" if fitted.converged else "no"}
    if correct is not None:
        details |= compared_with_zero_shot(task, correct)
    return Adapted(LinearClassifier(weight_CD, bias_C), None, weight_CD.numel() + bias_C.numel(), details)


def _choose(data_ND: Features, labels_N: Labels, settings: LogisticProbeSettings) -> tuple[float, int | None, str]:
    """Return C, the number of correct held-out images (``None`` if none is held out), and how C was chosen."""
    if settings.c is not None:
        return settings.c, None, "fixed"
    counts = np.unique(labels_N, return_counts=True)[1]
    if len(counts) == 1:
        return settings.one_shot_c, None, "fixed: one class, nothing to tell apart"
    if (fewest := int(counts.min())) < 2:
        return settings.one_shot_c, None, NO_HOLD_OUT
    folds = min(settings.folds, fewest)
    fold_N = stratified_folds(torch.from_numpy(labels_N), folds).numpy()

    def score(c: float) -> int:
        return cross_validated_correct(data_ND, labels_N, fold_N, c, settings.max_iterations)

    best, correct = search_c(score, settings.one_shot_c)
    return best, correct, f"cross-validation, {folds} folds"
