"""ProLIP: the trained projection, against the numbers of the official code."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.clip.tower import ImageTower
from bolt.methods import METHODS
from bolt.methods.prolip import ProLipSettings, train_projection
from tests.helpers.towers import VIT_B32, VIT_L14, make_task, moved_tensors
from tests.helpers.waves import numbers, wave

PROLIP = METHODS["prolip"]
close = partial(torch.testing.assert_close, rtol=0, atol=1e-4)
VIEWS = [wave(6, 7, 0.7, 1.3, 0.2 + 0.15 * view) for view in range(4)]
START = 0.4 * wave(7, 5, 0.9, 0.6, 0.3)
HEAD = F.normalize(0.3 * wave(3, 5, 1.1, 0.9, 0.5) + 0.5, dim=-1)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])


def trained(steps: int, regularisation: float | None) -> Tensor:
    projection = START.clone().requires_grad_()
    settings = ProLipSettings(1e-2, steps=steps, regularisation=regularisation)
    train_projection(projection, VIEWS, LABELS, HEAD, 100.0, settings)
    return projection.detach()


def loss_of(projection: Tensor) -> float:
    """Return the cross-entropy of the first view."""
    return float(F.cross_entropy(100 * F.normalize(VIEWS[0] @ projection, dim=-1) @ HEAD.T, LABELS))


@pytest.mark.parametrize(
    ("steps", "regularisation", "row", "loss"),
    [
        (1, 0.5, (0.108210, 0.323331, 0.388999, 0.355283, 0.160956), None),
        (10, 0.5, (0.116189, 0.367739, 0.350967, 0.378673, 0.194773), 11.823265),
        (10, None, (0.116189, 0.367739, 0.350967, 0.378673, 0.194773), 11.823265),  # k = 2, so lambda is 1/2
        (40, 0.5, (0.220728, 0.511415, 0.212150, 0.278980, 0.337518), 2.169338),
        (40, 20.0, (0.130693, 0.491780, 0.297125, 0.256537, 0.268932), 5.672855),
    ],
)
def test_training_gives_the_official_numbers(
    steps: int, regularisation: float | None, row: tuple[float, ...], loss: float | None
) -> None:
    assert loss_of(START) == pytest.approx(16.491129, abs=1e-4)
    projection = trained(steps, regularisation)
    close(projection[0], numbers(*row))
    assert loss is None or loss_of(projection) == pytest.approx(loss, abs=1e-3)


def test_a_larger_lambda_keeps_the_projection_nearer() -> None:
    near, far = ((trained(40, weight) - START).square().sum() for weight in (20.0, 0.5))
    assert far == pytest.approx(0.676436, abs=1e-4)
    assert near < far


@pytest.mark.parametrize(("shape", "count"), [(VIT_B32, 393_216), (VIT_L14, 786_432)], ids=["vit_b", "vit_l"])
def test_the_projection_has_as_many_numbers_as_the_paper_counts(shape: Any, count: int) -> None:
    with torch.device("meta"):
        assert ImageTower(shape).proj.weight.numel() == count


def test_only_the_projection_moves(backbone: Backbone) -> None:
    adapted = PROLIP.adapt(make_task(backbone), ProLipSettings(steps=5, views=2))
    assert moved_tensors(backbone, adapted) == {"proj"}
    assert adapted.trainable_parameters == 32 * 16


def test_training_lowers_the_loss(backbone: Backbone) -> None:
    curve: list[float] = []
    task = make_task(backbone, report=lambda step, metrics: curve.append(metrics["train_loss"]))
    PROLIP.adapt(task, ProLipSettings(1e-3, steps=30, views=2))
    assert len(curve) == 30
    assert curve[-1] < curve[0]


def test_one_class_leaves_the_projection_as_it_is(backbone: Backbone) -> None:
    adapted = PROLIP.adapt(make_task(backbone, classes=1), ProLipSettings(steps=3, views=2))
    assert torch.equal(adapted.tower.proj.weight, backbone.tower.proj.weight)
