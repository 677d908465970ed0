"""Learning from the frozen features of a support: reading them, checking them, and training a classifier on them.

Shape legend: N support images, B queries, C classes, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe, fit
from bolt.training.objectives import cross_entropy


def support_features(task: Task, view: int) -> Tensor:
    """The raw features (N, D) of one view of the support, in float32 on the backbone's device.

    Raises ``ValueError`` if one is NaN or infinite. A cache or a closed form would turn it into a wrong accuracy.
    """
    features_ND = task.support.features(view).to(task.backbone.device, torch.float32)
    bad = torch.nonzero(~torch.isfinite(features_ND).all(dim=-1)).flatten().tolist()
    if bad:
        raise ValueError(
            f"the support features of view {view} are NaN or infinite for {len(bad)} of {len(features_ND)} images, "
            f"first for row {bad[0]}; encode the support anew"
        )
    return features_ND


def unit_support_features(task: Task, view: int) -> Tensor:
    """:func:`support_features`, each row normalised to length 1."""
    return F.normalize(support_features(task, view), dim=-1)


def train_on_features(
    task: Task,
    parameters: Sequence[Tensor],
    logits_of: Callable[[Tensor], Tensor],
    recipe: TrainingRecipe,
    adapted: Callable[[], Adapted],
) -> Adapted:
    """Train a classifier of frozen features by cross-entropy. Every epoch uses the features of another augmented view.

    Args:
        parameters: the leaf tensors to train.
        logits_of: raw features (B, D) -> logits (B, C), differentiable in ``parameters``.
        adapted: makes the result from the current parameters. It is called at the end, and after every epoch if
            ``task.after_epoch`` asks for it.

    Raises:
        ValueError: for features that are NaN or infinite.
        bolt.training.loop.Diverged: if the loss or a parameter becomes NaN or infinite.
    """
    labels_N = task.support.labels_N.to(task.backbone.device)
    features: dict[int, Tensor] = {}

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        if epoch not in features:
            features.clear()
            features[epoch] = support_features(task, epoch + 1)
        rows = rows.to(labels_N.device)
        return cross_entropy(logits_of(features[epoch][rows]), labels_N[rows])

    fit(
        parameters,
        loss_of_rows,
        task.support.order,
        recipe,
        task.protocol,
        task.report,
        on_epoch_end=lambda epoch, state: task.after_epoch(epoch, adapted),
    )
    return adapted()
