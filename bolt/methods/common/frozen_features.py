"""Learning from the frozen features of a support: reading them, checking them, and training a classifier on them.

Shape legend: N support images, B queries, C classes, D joint embedding width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.transfer import to_device
from bolt.task.classifiers import Classifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.training.adaptation import fit_task
from bolt.training.loop import TrainingRecipe, cross_entropy

Head = TypeVar("Head", bound=Classifier)


def support_features(task: Task, view: int) -> Tensor:
    """Return the raw features (N, D) of one view of the support, in float32 on the backbone's device.

    Raises ``ValueError`` if a feature is NaN or infinite. Without this check, a method that fills a cache or
    solves equations would return a wrong accuracy and no error.
    """
    features_ND = task.support.features(view).to(task.backbone.device, torch.float32)
    if bad := torch.nonzero(~torch.isfinite(features_ND).all(dim=-1)).flatten().tolist():
        raise ValueError(
            f"the support features of view {view} are NaN or infinite for {len(bad)} of {len(features_ND)} images, "
            f"first for row {bad[0]}; encode the support again"
        )
    return features_ND


def unit_support_features(task: Task, view: int) -> Tensor:
    """Return :func:`support_features` with each row normalised to length 1."""
    return F.normalize(support_features(task, view), dim=-1)


def unit_validation_features(task: Task) -> tuple[Tensor, Tensor] | None:
    """Return unit features (V, D) and labels (V,) of the validation images; ``None`` if the protocol gives none.

    Raises ``ValueError`` if a feature is NaN or infinite.
    """
    if task.validation is None:
        return None
    unit_VD = unit_support_features(replace(task, support=task.validation), EVALUATION_VIEW)
    return unit_VD, task.validation.labels_N.to(unit_VD.device)


def unit_test_features(task: Task, views: int | None = None) -> Tensor:
    """Return the unit features (N, D) of the unlabelled test images, in float32 on the backbone's device.

    With ``views``, return the features (N, V, D) of that many views of each image.

    Raises ``ValueError`` if the task has no test images, or if a feature is NaN or infinite.
    """
    images = task.test_images
    features_ND = images.features() if views is None else images.view_features(views)
    unit_ND = F.normalize(features_ND.to(task.backbone.device, torch.float32), dim=-1)
    if not bool(torch.isfinite(unit_ND).all()):
        what = "the test images" if views is None else "views of the test images"
        raise ValueError(f"features of {what} are NaN or infinite; encode them again")
    return unit_ND


def entropies(logits_VC: Tensor) -> Tensor:
    """Return the entropy of each view, (V,), in nats."""
    log_p_VC = logits_VC.log_softmax(dim=-1)
    return -(log_p_VC.exp() * log_p_VC).sum(dim=-1)


def train_on_features(
    task: Task,
    parameters: Sequence[Tensor],
    classifier: Callable[[], Head],
    recipe: TrainingRecipe,
    *,
    finish: Callable[[Head], Adapted] = Adapted,
    logits_of: Callable[[Tensor], Tensor] | None = None,
    views: int | None = None,
    penalty: Callable[[], Tensor] | None = None,
    **options: Any,
) -> Adapted:
    """Train a classifier of frozen features by cross-entropy. Each epoch uses the features of one augmented view.

    Args:
        parameters: the leaf tensors to train.
        classifier: ``classifier()`` -> the classifier with the current parameters. Its logits are differentiable in
            the parameters.
        finish: makes the result from a frozen copy of the classifier. It is called at the end, and after every epoch if
            ``task.after_epoch`` asks for it.
        logits_of: raw features (B, D) -> logits (B, C) in training, by default those of the classifier. Several
            classifiers give logits (..., B, C), and their losses are added.
        views: the epochs cycle through the augmented views 1 to ``views``; by default, every epoch has its own view.
        penalty: a term that is added to the loss of a batch. It is called after the logits have been computed.
        options: ``make_optimiser`` and ``schedule`` of :func:`bolt.training.loop.fit`.

    Raises:
        ValueError: for features that are NaN or infinite.
        bolt.training.loop.Diverged: if the loss or a parameter becomes NaN or infinite.
    """
    labels_N = task.support.labels_N.to(task.backbone.device)

    @lru_cache(maxsize=views or 1)  # by default, no later epoch reads a view again
    def features(view: int) -> Tensor:
        return support_features(task, view)

    def view_of(epoch: int) -> int:
        return epoch % (views or recipe.epochs) + 1

    def order(epoch: int) -> Tensor:
        features(view_of(epoch))  # before the epoch's first step, because reading makes the host wait for the GPU
        return task.support.order(epoch)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        rows = to_device(rows, labels_N.device)
        features_BD = features(view_of(epoch))[rows]
        logits = logits_of(features_BD) if logits_of else classifier()(features_BD)
        losses = [cross_entropy(logits_BC, labels_N[rows]) for logits_BC in logits.view(-1, *logits.shape[-2:])]
        return torch.stack(losses if penalty is None else [*losses, penalty()]).sum()

    @torch.no_grad()
    def adapted() -> Adapted:
        count = sum(tensor.numel() for tensor in parameters)
        return replace(finish(classifier().frozen()), trainable_parameters=count)

    return fit_task(task, parameters, loss_of_rows, order, recipe, adapted, **options)
