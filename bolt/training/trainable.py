"""What a training is given: the tensors that move, how images are encoded, and the loss of each batch.

Shape legend: B batch, C classes, D joint embedding width, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from bolt.clip.tower import ImageTower


@dataclass(frozen=True)
class Trainable:
    """A tower in training.

    Attributes:
        encode: normalised images (B, 3, S, S) -> raw features (B, D), differentiable in ``parameters``.
        parameters: the leaf tensors that move.
        current: a plain, frozen tower with the parameters as they stand.
        classify: raw features -> logits, (B, C); the frozen text head by default.
    """

    encode: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    current: Callable[[], ImageTower]
    classify: Callable[[Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Losses:
    """What :func:`bolt.training.loop.fit` asks for: the mean loss of rows, and the rows of an epoch."""

    of_rows: Callable[[int, Tensor], Tensor]
    order: Callable[[int], Tensor]
