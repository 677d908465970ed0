"""Cross-validation on the support: how well a setting does on labelled images that were not used for the training.

A few-shot task has no validation split, so methods on frozen features choose a setting here. The images are split into
folds with the same number of images of every class. Each fold is classified, un-augmented, by a classifier trained on
the others.

The text head is not trained on the support, so its accuracy on the support is a fair estimate. A method that is worse
than that on held-out images says so in its ``details`` (:func:`compared_with_zero_shot`).

Shape legend: N support images, B rows, C classes, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from bolt.methods.common.frozen_features import support_features, unit_support_features
from bolt.task.task import EVALUATION_VIEW, Support, Task

NO_HOLD_OUT = "fixed: a class has one image, none to leave out"
"""The description of a choice that could not be made, in the ``details`` of a method."""


class Fold(NamedTuple):
    """One fold: a task without its images, and the images' un-augmented raw features (B, D) and labels (B,)."""

    task: Task
    features_BD: Tensor
    labels_B: Tensor

    def correct(self, classify: Callable[[Tensor], Tensor]) -> int:
        """How many of the held-out images a classifier (raw features -> logits) assigns to their class."""
        return int((classify(self.features_BD).argmax(dim=-1) == self.labels_B).sum())


def fewest_images(labels_N: Tensor) -> int:
    """The number of images of the smallest class that has any."""
    return int(labels_N.bincount()[labels_N].min())


def stratified_folds(labels_N: Tensor, folds: int) -> Tensor:
    """The fold of each image, (N,). The images of each class are assigned to the folds in turn."""
    fold_N = torch.empty_like(labels_N)
    for label in torch.unique(labels_N).tolist():
        members = torch.nonzero(labels_N == label).flatten()
        fold_N[members] = torch.arange(len(members), device=labels_N.device) % folds
    return fold_N


def held_out_folds(task: Task, folds: int) -> Iterator[Fold]:
    """The folds of the support; as many as the smallest class has images, if that is fewer than ``folds``.

    The tasks report nothing. Every class must have at least two images, see :func:`fewest_images`.
    """
    labels_N = task.support.labels_N
    fold_N = stratified_folds(labels_N, min(folds, fewest_images(labels_N)))
    features_ND = support_features(task, EVALUATION_VIEW)
    for fold in range(int(fold_N.max()) + 1):
        held_out = torch.nonzero(fold_N == fold).flatten()
        labels_B = labels_N[held_out].to(features_ND.device)
        kept = torch.nonzero(fold_N != fold).flatten()
        yield Fold(with_images(task, kept), features_ND[held_out.to(features_ND.device)], labels_B)


def with_images(task: Task, rows: Tensor) -> Task:
    """The task with only some rows (B,) of its support, in the same order of training; it reports nothing."""
    whole = task.support
    on_cpu = rows.cpu()
    position_N = torch.full((len(whole),), -1)
    position_N[on_cpu] = torch.arange(len(on_cpu))

    def features(view: int) -> Tensor:
        features_ND = whole.features(view)
        return features_ND[rows.to(features_ND.device)]

    def order(epoch: int) -> Tensor:
        order_N = position_N[whole.order(epoch).cpu()]
        return order_N[order_N >= 0]

    support = Support(
        labels_N=whole.labels_N[rows.to(whole.labels_N.device)],
        indices_N=whole.indices_N[on_cpu],
        pixels=lambda view, some: whole.pixels(view, on_cpu[some.cpu()]),
        features=features,
        order=order,
    )
    return replace(task, support=support, report=lambda epoch, metrics: None, after_epoch=lambda epoch, make: None)


def compared_with_zero_shot(task: Task, correct: int) -> dict[str, str]:
    """An entry for ``details`` if fewer support images are correct than with the text head; else none.

    Args:
        correct: how many images of the support the method classifies correctly when they are held out.
    """
    unit_ND, head_CD = unit_support_features(task, EVALUATION_VIEW), task.head_CD.to(task.backbone.device)
    labels_N = task.support.labels_N.to(unit_ND.device)
    zero_shot = int(((unit_ND @ head_CD.T.to(unit_ND)).argmax(dim=-1) == labels_N).sum())
    if correct >= zero_shot:
        return {}
    size = len(labels_N)
    return {
        "worse_than_zero_shot": f"{100 * correct / size:.1f} % of held-out support images are correct, "
        f"with the text head {100 * zero_shot / size:.1f} %"
    }
