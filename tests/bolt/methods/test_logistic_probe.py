"""The logistic probe minimises its objective, and chooses C by labels of the support only."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.logistic_probe import (
    COARSE_GRID,
    LogisticProbeSettings,
    adapt,
    cross_validated_correct,
    fit_logistic,
    search_c,
)
from tests.helpers.frozen_tasks import clip_like, frozen_task


@pytest.mark.parametrize("classes", [2, 5])
def test_the_fit_is_the_minimum_of_the_penalised_cross_entropy(classes: int, backbone: Backbone) -> None:
    """The gradient of C (sum of losses) + |W|^2 / 2 is zero. For two classes, W are the weights of the log-odds."""
    task = clip_like(backbone, shots=6, classes=classes).task
    features, labels = F.normalize(task.support.features(0).double(), dim=-1), task.support.labels_N
    fitted = fit_logistic(features.numpy(), labels.numpy(), 10.0, 1000)
    weight = torch.from_numpy(fitted.weights).requires_grad_()
    bias = torch.from_numpy(fitted.biases).requires_grad_()
    penalty = weight.square().sum() / 2 if classes > 2 else weight.diff(dim=0).square().sum() / 2
    loss = 10 * F.cross_entropy(F.linear(features, weight, bias), labels, reduction="sum") + penalty
    gradients = torch.autograd.grad(loss, (weight, bias))
    # L-BFGS stops at a gradient of 1e-4 of the mean loss, which is 1 / (C N) times this objective.
    assert max(float(gradient.abs().max()) for gradient in gradients) <= 1e-4 * 10 * len(labels)
    assert fitted.converged


def test_the_search_narrows_to_the_best_c() -> None:
    """The score is highest at C = 10^1.3. The search halves an interval around 10^2 and finds that value."""
    asked: list[float] = []

    def score(c: float) -> int:
        asked.append(c)
        return -round(1000 * abs(math.log10(c) - 1.3))

    assert math.log10(search_c(score, 10.0)[0]) == pytest.approx(1.3, abs=0.02)
    assert tuple(asked[: len(COARSE_GRID)]) == COARSE_GRID
    assert len(asked) == len(set(asked)), "no C is scored twice"


def test_of_equals_the_c_nearest_to_the_one_shot_c_wins() -> None:
    assert search_c(lambda c: 1, 10.0) == (pytest.approx(10.0), 1)
    large, correct = search_c(lambda c: 5 if c > 900 else 1, 10.0)
    assert correct == 5
    assert 900 < large < 1100


def test_cross_validation_never_scores_an_image_it_was_fitted_on() -> None:
    """Every image has a direction of its own, so a regression classifies only images that it was fitted on."""
    labels = np.repeat(np.arange(4), 2)
    assert cross_validated_correct(np.eye(8), labels, np.arange(8) % 2, 1e4, 1000) <= 2


@pytest.mark.slow
def test_more_shots_are_worth_more(backbone: Backbone) -> None:
    problems = {shots: clip_like(backbone, shots=shots) for shots in (1, 4, 16)}
    adapted = {shots: adapt(problem.task, LogisticProbeSettings()) for shots, problem in problems.items()}
    scores = [problems[shots].accuracy(adapted[shots]) for shots in problems]
    assert scores[0] + 10 < scores[1] < scores[2] - 10
    assert scores[0] < problems[1].zero_shot()
    assert adapted[4].details["search"] == "cross-validation, 4 folds"


def test_too_few_iterations_are_told_and_no_warning_escapes(backbone: Backbone) -> None:
    task = clip_like(backbone, shots=4).task
    assert adapt(task, LogisticProbeSettings(c=1e4, max_iterations=1)).details["converged"] == "no"
    assert adapt(task, LogisticProbeSettings(c=1.0)).details["converged"] == "yes"


def test_many_classes_of_one_image_are_no_mistake(recwarn: pytest.WarningsRecorder) -> None:
    """Regression: for each fit, scikit-learn warned that the labels "could represent a regression problem"."""
    fitted = fit_logistic(np.eye(30), np.arange(30), 10.0, 100)
    assert (fitted.predict(np.eye(30)) == np.arange(30)).all()
    assert not recwarn.list


@pytest.mark.slow
@pytest.mark.parametrize("present", [1, 2, 3])
def test_a_class_without_an_image_is_never_predicted(present: int, backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=4, classes=5)
    keep = problem.task.support.labels_N < present
    features, labels = problem.task.support.features(0)[keep], problem.task.support.labels_N[keep]
    task = frozen_task(backbone, lambda view: features, labels, problem.task.head_CD)
    for c in (None, 1e-6, 1e6):
        logits = adapt(task, LogisticProbeSettings(c=c)).classify(problem.test_ND)
        assert logits.shape == (len(problem.test_ND), 5)
        assert torch.isfinite(logits).all()
        assert set(logits.argmax(dim=-1).tolist()) == set(range(present))
