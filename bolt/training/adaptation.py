"""Trains some parameters of an image tower on a task: on the labelled support or, at test time, on the test images.

With a :class:`Trainable`, a method says which tensors are trained, how images are encoded during the training and,
optionally, what the loss is. This module chooses the images, their order and their views, which are the same for all
methods.

Shape legend: N support images, B batch, C classes, D joint embedding width, S image side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bolt.clip.tower import ImageTower
from bolt.clip.transfer import to_device
from bolt.task.classifiers import Classifier
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe, cross_entropy, fit
from bolt.training.test_time import Losses, Map, unlabelled_losses


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
            the cross-entropy of ``classify(encode(images))``. Training on unlabelled images does not use this loss.
        embed_classes: as in :class:`bolt.task.task.Adapted`, if a text tower is trained too.
    """

    encode: Callable[[Tensor], Tensor]
    parameters: Sequence[Tensor]
    current: Callable[[], ImageTower]
    classify: Callable[[Tensor], Tensor] | None = None
    classifier: Callable[[], Classifier] | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    embed_classes: Callable[[Sequence[str]], Tensor] | None = None


def trainable_tower(
    tower: ImageTower, *others: Tensor, classify: Callable[[Tensor], Tensor] | None = None
) -> Trainable:
    """Return a :class:`Trainable` for the tensors of ``tower`` that require a gradient, and for the tensors ``others``.

    ``classify``: as in :class:`Trainable`.
    """
    own = dict(tower.named_parameters())
    names = [name for name, path in tower.tensor_paths().items() if own[path].requires_grad]
    trained = [tensor for tensor in own.values() if tensor.requires_grad]
    return Trainable(tower, [*trained, *others], lambda: tower.copy(trainable=names).requires_grad_(False), classify)


def train(
    task: Task,
    trainable: Trainable,
    recipe: TrainingRecipe,
    *,
    min_batches: int = 1,
    start: ImageTower | None = None,
    **options: Any,
) -> Adapted:
    """Train on the labelled support or, if the task has unlabelled test images, on the test images; return the result.

    The parameters are frozen afterwards. To train them further, set ``requires_grad_()`` again.

    Args:
        min_batches: repeat the support, in new views, until an epoch has at least this many batches (aTLAS).
        start: at test time, the tower whose most confident predictions become labels; by default the frozen tower.
        recipe, options: see :func:`bolt.training.loop.fit`. The options are ``relative_rates``, ``deviations``,
            ``make_optimiser`` and ``schedule``.

    Raises:
        bolt.training.loop.Diverged: if a loss or a parameter is NaN or infinite.
    """
    classify = trainable.classify or task.text_head
    if task.unlabelled is None:
        loss_of_rows, order = _labelled(task, trainable, classify, recipe.batch_size, min_batches)
    else:
        loss_of_rows, order = unlabelled_losses(task, trainable.encode, classify, recipe.batch_size, start)
    options["precision"] = task.backbone.precision
    make = partial(adapted, task, trainable)
    return fit_task(task, trainable.parameters, loss_of_rows, order, recipe, make, **options)


def fit_task(
    task: Task,
    parameters: Sequence[Tensor],
    loss_of_rows: Callable[[int, Tensor], Tensor],
    order: Callable[[int], Tensor],
    recipe: TrainingRecipe,
    make: Callable[[], Adapted],
    **options: Any,
) -> Adapted:
    """Call :func:`bolt.training.loop.fit` with the task's protocol and its callbacks ``report`` and ``after_epoch``.

    Freeze the parameters afterwards, and return the method's result.

    Args:
        make: makes the method's result from the current parameters.
    """
    options["on_epoch_end"] = lambda epoch, state: task.after_epoch(epoch, make)
    fit(parameters, loss_of_rows, order, recipe, task.protocol, task.report, **options)
    for tensor in parameters:
        tensor.requires_grad_(False)
    return make()


def _labelled(task: Task, trainable: Trainable, classify: Map, batch_size: int, min_batches: int) -> Losses:
    """Return the loss on augmented views of the support, and the order in which the training reads the rows.

    The loss is the method's own or, by default, the cross-entropy. A row is a support image. If an epoch repeats the
    support, row r is copy r // N of image r % N, and every copy is a different view.
    """
    labels_N = task.support.labels_N.to(task.backbone.device)
    size = len(labels_N)
    copies = oversampling(size, batch_size, min_batches)

    def entropy(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        return cross_entropy(classify(trainable.encode(images_B3SS)), labels_B)

    loss = trainable.loss or entropy

    def of_rows(epoch: int, rows: Tensor) -> Tensor:
        images, copy = rows % size, rows // size
        of_copy = [copy == number for number in sorted(set(copy.tolist()))]
        parts = [task.support.pixels(epoch * copies + int(copy[mask][0]) + 1, images[mask]) for mask in of_copy]
        labels = to_device(torch.cat([images[mask] for mask in of_copy]), labels_N.device)
        images_B3SS = task.backbone.normalise(torch.cat(parts))
        return loss(images_B3SS, labels_N[labels])

    def order(epoch: int) -> Tensor:
        return torch.cat([copy * size + task.support.order(epoch * copies + copy) for copy in range(copies)])

    return of_rows, order


def adapted(task: Task, trainable: Trainable, **more: Any) -> Adapted:
    """Return the method's result with the current parameters. ``more`` sets further fields of the result."""
    classify = trainable.classifier() if trainable.classifier else trainable.classify or task.text_head
    count = sum(tensor.numel() for tensor in trainable.parameters)
    return Adapted(classify, trainable.current(), count, embed_classes=trainable.embed_classes, **more)


def oversampling(size: int, batch_size: int, min_batches: int) -> int:
    """Return how often an epoch repeats the support to have at least ``min_batches`` batches, as in aTLAS's code.

    The number is ``int(min_batches / r) + 1`` if ``r = size / batch_size`` is below ``min_batches``, and otherwise 1.
    With a minimum of 1 the result is 1, because every epoch has at least one batch.
    """
    batches = size / batch_size
    return 1 if min_batches <= 1 or batches >= min_batches else int(min_batches / batches) + 1
