"""ProLIP: the trained projection, against the numbers of the official code."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.backbone import Backbone
from bolt.methods.prolip import ProLipSettings, train_projection
from tests.helpers.adapting import adapt
from tests.helpers.towers import make_task
from tests.helpers.waves import numbers, wave

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
    if (steps, regularisation) == (40, 0.5):
        assert float((projection - START).square().sum()) == pytest.approx(0.676436, abs=1e-4)


def test_one_class_leaves_the_projection_as_it_is(backbone: Backbone) -> None:
    adapted = adapt("prolip", make_task(backbone, classes=1), steps=3, views=2)
    assert torch.equal(adapted.tower.proj.weight, backbone.tower.proj.weight)
