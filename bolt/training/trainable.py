"""The interface between a method and the training loop: the tensors to train, the encoder, and the loss of each batch.

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
        classifier: makes the classifier of the result from the current parameters. With ``None``, the classifier of the
            result is ``classify``.
        loss: ``loss(images, labels)`` -> the mean loss of normalised images (B, 3, S, S) with labels (B,). By default
            the cross-entropy of ``classify(encode(images))``. Training on unlabelled images has a loss of its own.
    """

    encode: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    current: Callable[[], ImageTower]
    classify: Callable[[Tensor], Tensor] | None = None
    classifier: Callable[[], Classifier] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True)
class Losses:
    """The loss of a training, and the order of its rows.

    Attributes:
        of_rows: ``of_rows(epoch, rows)`` -> the mean loss of these rows, on the tower's device.
        order: ``order(epoch)`` -> the rows of an epoch, (N,).
    """

    of_rows: Callable[[int, Tensor], Tensor]
    order: Callable[[int], Tensor]
