"""The frozen features of a support, checked: what the methods that never touch the tower learn from.

Shape legend: N support images, B queries, D joint embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.task import Task


def support_features(task: Task, view: int) -> Tensor:
    """The raw features (N, D) of one view of the support, in float32 on the backbone's device.

    Raises ``ValueError`` where one is NaN or infinite: a cache or a closed form would turn it into an accuracy.
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
    """:func:`support_features`, normalised."""
    return F.normalize(support_features(task, view), dim=-1)


def unit(features_BD: Tensor, like: Tensor) -> Tensor:
    """Features normalised in the precision, and on the device, of a classifier's own tensor."""
    return F.normalize(features_BD.to(like), dim=-1)
