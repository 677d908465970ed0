"""Sums of task vectors in float64 from which single sources can be subtracted exactly.

Shape legend: m, n a weight matrix's rows and columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

GRID = 2.0**-40
"""Step to which task vectors are rounded before they are summed, 9e-13; see :func:`add_task_vector`."""

_LARGEST = 64.0
_ROUNDER = 1.5 * 2.0**52 * GRID


def add_task_vector(total_f64: Tensor, task_vector: Tensor) -> None:
    """Add one source's task vector to a domain's float64 sum, in place, so that it can be taken out again exactly.

    Each number is rounded to a multiple of ``GRID`` first. That changes next to nothing: the difference of two
    float32 weights is such a multiple already unless both are below 8e-6. Sums of up to a hundred of them carry no
    rounding error in float64.

    Raises ``ValueError`` for entries that are not finite or above 64, which no fine-tuned model has.
    """
    total_f64 += _on_grid(task_vector)


def leave_out_mean(total_f64: Tensor, held_out: Sequence[Tensor], count: int) -> Tensor:
    """The float32 mean of a domain's task vectors without the held-out ones.

    ``total_f64`` is the sum over all ``count`` sources of the domain, made by :func:`add_task_vector`; ``held_out``
    are the float32 task vectors of the target and its kin. Pooling is linear, so this is all a target needs.

    Nothing of a held-out model is left in the result: the sum holds multiples of ``GRID``, added without rounding,
    so subtracting one gives, bit for bit, the sum that never contained it. (A plain float64 sum of float32 values,
    53 bits for 24, has the same property as long as the magnitudes spread over less than 29 bits; the grid makes
    it hold always.)
    """
    if count <= len(held_out):
        raise ValueError(f"leaving {len(held_out)} of {count} sources out leaves none")
    rest = total_f64
    for task_vector in held_out:
        own = _on_grid(task_vector)
        rest = torch.sub(rest, own, out=own)
    return (rest / (count - len(held_out))).float()


def _on_grid(task_vector: Tensor) -> Tensor:
    """The float64 multiples of ``GRID`` nearest to a task vector."""
    low, high = torch.aminmax(task_vector)
    if not (float(low) > -_LARGEST and float(high) < _LARGEST):  # true for NaN too
        raise ValueError("a task vector has entries that are NaN, infinite or absurdly large")
    # Numbers next to 1.5 * 2**52 steps are one step apart, so adding that many rounds to whole steps.
    return task_vector.to(torch.float64, copy=True).add_(_ROUNDER).sub_(_ROUNDER)
