"""Methods that choose on validation images where the protocol gives them."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.methods.common.feature_cache import search_grid
from bolt.methods.gda import ALPHAS, fit_gaussians
from bolt.task.classifiers import CacheClassifier
from bolt.task.support import draw_validation
from bolt.task.task import Task
from tests.helpers.adapting import classifier
from tests.helpers.frozen_tasks import Problem, clip_like, no_pixels
from tests.helpers.quick_settings import quick_settings

USERS = sorted(name for name, method in METHODS.items() if method.uses_validation)


def with_validation(problem: Problem, rows: Tensor) -> Task:
    """Return the task with the test images as validation images."""
    features_VD, labels_V = problem.test_ND[rows], problem.test_labels_N[rows]
    support = replace(
        problem.task.support, labels_N=labels_V, indices_N=rows, pixels=no_pixels, features=lambda view: features_VD
    )
    return replace(problem.task, validation=support)


@pytest.mark.parametrize("name", USERS)
@pytest.mark.parametrize("shots", [1, 4])
def test_the_labels_of_validation_images_choose_and_no_others_do(name: str, shots: int, backbone: Backbone) -> None:
    method = METHODS[name]
    settings = method.configure(quick_settings(method.name))
    problem = clip_like(backbone, shots=shots, seed=2)
    task = with_validation(problem, torch.arange(0, 600, 3))
    adapted = method.adapt(task, settings)
    assert adapted.details["search"] == "validation images"
    assert task.validation is not None
    wrong = replace(task.validation, labels_N=(task.validation.labels_N + 1) % 10)
    misled = method.adapt(replace(task, validation=wrong), settings)
    assert problem.accuracy(misled) < problem.accuracy(adapted)


def test_tip_adapter_takes_the_alpha_and_beta_of_a_brute_force_search(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=2, seed=4)
    task = with_validation(problem, torch.arange(50))
    method = METHODS["tip_adapter"]
    adapted = method.adapt(task, method.configure({"passes": 2}))
    cache = classifier(adapted, CacheClassifier)
    queries_VD, labels_V = problem.test_ND[:50], problem.test_labels_N[:50]
    betas, alphas = search_grid(12.0, 30.0)
    correct = [
        (int((replace(cache, alpha=alpha, beta=beta)(queries_VD).argmax(dim=-1) == labels_V).sum()), beta, alpha)
        for beta in betas[::10]
        for alpha in alphas
    ]
    own = int((adapted.classify(queries_VD).argmax(dim=-1) == labels_V).sum())
    assert own >= max(correct)[0]


def test_gda_takes_the_smallest_of_the_best_alphas(backbone: Backbone) -> None:
    problem = clip_like(backbone, shots=4, seed=4)
    task = with_validation(problem, torch.arange(100))
    adapted = METHODS["gda"].adapt(task, METHODS["gda"].configure({"views": 2}))
    unit = partial(F.normalize, dim=-1)
    samples_nD = torch.cat([unit(task.support.features(view)) for view in (1, 2)])
    gaussians = fit_gaussians(samples_nD, task.support.labels_N.repeat(2), 10)
    queries_VD = unit(problem.test_ND[:100]).double()
    logits = [
        100 * queries_VD @ task.head_CD.double().T + alpha * (queries_VD @ gaussians.weight().T + gaussians.bias())
        for alpha in ALPHAS
    ]
    correct = [int((each.argmax(dim=-1) == problem.test_labels_N[:100]).sum()) for each in logits]
    assert adapted.details["alpha"] == ALPHAS[correct.index(max(correct))]


TRAIN, VAL = [0, 0, 0, 1, 1, 1, 2, 2, 2], [0] * 6 + [1] * 3 + [2] * 9


@pytest.mark.parametrize(
    ("draw", "shots", "per_class"),
    [("nested", 16, [4, 3, 4]), ("nested", 2, [2, 2, 2]), ("dassl", 8, [4, 3, 4]), ("lp_plus_plus", 6, [6, 6, 6])],
)
def test_drawn_validation_images(draw: str, shots: int, per_class: list[int]) -> None:
    drawn = draw_validation(VAL, TRAIN, shots, dataset="d", seed=1, draw=draw)  # type: ignore[arg-type]
    assert torch.tensor(VAL)[torch.from_numpy(drawn)].bincount().tolist() == per_class
