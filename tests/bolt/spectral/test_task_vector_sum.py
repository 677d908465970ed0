"""Sums of task vectors from which one can be taken out again without a trace."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bolt.spectral.task_vector_sum import GRID, add_task_vector, leave_out_mean


def task_vectors(count: int, seed: int = 0) -> list[Tensor]:
    """Return random float32 task vectors, whose magnitudes span many orders."""
    generator = torch.Generator().manual_seed(seed)
    size = (64, 48)
    return [
        torch.randn(size, generator=generator) * 10 ** (4 * torch.rand(size, generator=generator) - 7)
        for _ in range(count)
    ]


def total_of(vectors: Sequence[Tensor]) -> Tensor:
    total = torch.zeros_like(vectors[0], dtype=torch.float64)
    for vector in vectors:
        add_task_vector(total, vector)
    return total


def test_leave_out_mean_is_the_mean_of_the_others() -> None:
    vectors = task_vectors(5)
    expected = torch.stack(vectors[:3]).double().mean(dim=0)
    actual = leave_out_mean(total_of(vectors), vectors[3:], 5)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual.double(), expected, rtol=1e-7, atol=2 * GRID)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1000.0])
def test_nothing_of_a_held_out_model_is_left(factor: float) -> None:
    """The mean without the target has the same bits whether the target's model is absent, present or large noise."""
    others, own = task_vectors(16), task_vectors(1, seed=9)[0]
    poisoned = factor * torch.randn(own.shape, generator=torch.Generator().manual_seed(5)) * 0.01
    never_there = leave_out_mean(total_of(others), [], 16)
    assert torch.equal(never_there, leave_out_mean(total_of([*others, own]), [own], 17))
    assert torch.equal(never_there, leave_out_mean(total_of([*others, poisoned]), [poisoned], 17))
    assert torch.equal(never_there, leave_out_mean(total_of([poisoned, *others[::-1], own]), [own, poisoned], 18))


def test_differences_of_float32_weights_lie_on_the_grid() -> None:
    generator = torch.Generator().manual_seed(4)
    before = 0.02 * torch.randn(1000, generator=generator)
    after = before + 1e-4 * torch.randn(1000, generator=generator)
    difference = (after - before)[(before.abs() > 1e-5) & (after.abs() > 1e-5)]
    total = torch.zeros(len(difference), dtype=torch.float64)
    add_task_vector(total, difference)
    assert torch.equal(total, difference.double())


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e6])
def test_absurd_task_vectors_and_an_empty_mean_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not below 64"):
        add_task_vector(torch.zeros(2, dtype=torch.float64), torch.tensor([0.0, value]))
    vectors = task_vectors(2)
    with pytest.raises(ValueError, match="2 of 2"):
        leave_out_mean(total_of(vectors), vectors, 2)
