"""The optimisers and schedule of CoOp's training code."""

import pytest
import torch
from torch import Tensor

from bolt.methods.common.coop_training import adam, coop_schedule, sgd
from bolt.training.loop import fit, plain_recipe


@pytest.mark.parametrize(
    ("epochs", "rates"),
    [(3, [1e-5, 2e-3, 1.5e-3]), (5, [1e-5, 2e-3, 1.809e-3, 1.309e-3, 6.91e-4])],
)
def test_the_schedule_is_the_official_one(epochs: int, rates: list[float]) -> None:
    """Numbers of the official code (Dassl.pytorch c61a1b5)."""
    rate = coop_schedule(plain_recipe(epochs, 32, 2e-3, 0.0))
    assert [rate(step, 2) for step in range(0, 2 * epochs, 2)] == pytest.approx(rates, rel=1e-3)
    assert [rate(step, 2) for step in range(1, 2 * epochs, 2)] == pytest.approx(rates, rel=1e-3)


def test_weight_decay_is_a_penalty_inside_the_gradient() -> None:
    """Without a gradient of its own, Adam moves a weight by the whole rate, SGD by rate x decay x weight."""
    recipe = plain_recipe(1, 4, 0.1, 0.01)
    moved = {}
    for make in (sgd, adam):
        weight = torch.tensor([2.0], requires_grad=True)

        def no_loss(epoch: int, rows: Tensor, weight: Tensor = weight) -> Tensor:
            return 0 * weight.sum()

        fit([weight], no_loss, lambda epoch: torch.arange(4), recipe, make_optimiser=make, schedule=lambda *step: 0.1)
        moved[make] = 2.0 - float(weight.detach())
    assert moved[sgd] == pytest.approx(0.1 * 0.01 * 2, rel=1e-3)
    assert moved[adam] == pytest.approx(0.1, rel=1e-4)
