"""Sums of task vectors from which single sources can be subtracted without rounding error.

A domain is a set of datasets that serve as sources for one another. A target needs the mean task vector of the domain
without the target itself. One sum over the domain serves every target, because the task vectors that a target must not
have can be subtracted from the sum.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

GRID = 2.0**-40
"""Task vectors are rounded to multiples of this step (9e-13) before they are summed; see :func:`add_task_vector`."""

_LARGEST = 64.0
_ROUNDER = 1.5 * 2.0**52 * GRID


def add_task_vector(total_f64: Tensor, task_vector: Tensor) -> None:
    """Add one source's task vector to a float64 sum, in place, so that an exact subtraction is possible later.

    Each number is first rounded to a multiple of ``GRID``. This changes almost nothing, because the difference of two
    float32 weights of magnitude 8e-6 or more already is a multiple of ``GRID``. In float64, sums of up to a hundred
    multiples of ``GRID`` have no rounding error.

    Raises ``ValueError`` if an entry is not finite or not below 64 in magnitude; no fine-tuned model has such entries.
    """
    total_f64 += _on_grid(task_vector)


def exact_sum(task_vectors: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return the sum of task vectors by tensor. Raises ``ValueError`` where :func:`add_task_vector` does."""
    sums: dict[str, Tensor] = {}
    for task_vector in task_vectors:
        for name, tensor in task_vector.items():
            add_task_vector(sums.setdefault(name, torch.zeros_like(tensor, dtype=torch.float64)), tensor)
    return sums


def leave_out_mean(total_f64: Tensor, held_out: Sequence[Tensor], count: int) -> Tensor:
    """Return the float32 mean of a domain's task vectors, with the held-out task vectors left out.

    The result contains nothing of a held-out model. The sum holds multiples of ``GRID`` that were added without
    rounding, so subtracting a task vector gives, bit for bit, the sum that never contained it. (In a plain float64 sum
    of float32 values, rounding could leave traces of the task vector, unless all magnitudes lie within 29 bits.)

    Args:
        total_f64: sum over all sources of the domain, made by :func:`add_task_vector`.
        held_out: float32 task vectors of the target and of its group.
        count: number of task vectors in ``total_f64``.

    Raises:
        ValueError: if no source is left, or a held-out entry is not finite or not below 64 in magnitude.
    """
    if count <= len(held_out):
        raise ValueError(f"no source is left: {len(held_out)} of {count} are held out")
    rest = total_f64
    for task_vector in held_out:
        own = _on_grid(task_vector)
        rest = torch.sub(rest, own, out=own)
    return (rest / (count - len(held_out))).float()


def _on_grid(task_vector: Tensor) -> Tensor:
    """Return a task vector rounded to multiples of ``GRID``, in float64."""
    low, high = torch.aminmax(task_vector)
    if not (float(low) > -_LARGEST and float(high) < _LARGEST):  # true for NaN too
        raise ValueError(f"a task vector has entries that are NaN, infinite or not below {_LARGEST:g} in magnitude")
    # Float64 numbers near _ROUNDER are GRID apart. So adding _ROUNDER rounds an entry to a multiple of GRID.
    return task_vector.to(torch.float64, copy=True).add_(_ROUNDER).sub_(_ROUNDER)
