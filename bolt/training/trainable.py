"""What a training needs from a method: the tensors to train, how images are encoded, and the loss of each batch.

Shape legend: B batch, C classes, D joint embedding width, S image side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.task.classifiers import Classifier


@dataclass(frozen=True)
class Trainable:
    """An image tower in training.

    Attributes:
        encode: normalised images (B, 3, S, S) -> raw features (B, D), differentiable in ``parameters``.
        parameters: the leaf tensors to train.
        current: makes a plain, frozen tower with the current parameters.
        classify: raw features -> logits, (B, C); the frozen text head by default.
        classifier: makes the classifier of the current parameters, if ``classify`` is for training only.
        capturable: every training step runs the same operations on the same tensors, so that it can be captured as a
            CUDA graph. It draws no random numbers, and decides nothing from values or from numbers of steps.
        invalidate: makes ``encode`` forget what it keeps of the parameters. Called after a step that ran without it.
    """

    encode: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    current: Callable[[], ImageTower]
    classify: Callable[[Tensor], Tensor] | None = None
    classifier: Callable[[], Classifier] | None = None
    capturable: bool = False
    invalidate: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Losses:
    """The loss and the order of rows.

    Attributes:
        inputs: ``inputs(epoch, rows)`` -> what the loss of these rows is computed from, on the tower's device. Whatever
            is read or drawn on the host is read and drawn here.
        of_inputs: ``of_inputs(*inputs)`` -> the mean loss. It runs on the tower's device only.
        order: ``order(epoch)`` -> the rows of an epoch, (N,).
    """

    inputs: Callable[[int, Tensor], tuple[Tensor, ...]]
    of_inputs: Callable[..., Tensor]
    order: Callable[[int], Tensor]

    def of_rows(self, epoch: int, rows: Tensor) -> Tensor:
        """The mean loss of these rows."""
        return self.of_inputs(*self.inputs(epoch, rows))
