"""Linear probe: the zero-shot head, trained on frozen features.

The head starts at the text embeddings and is trained with its bias by cross-entropy. It is kept at the scale of unit
vectors and the logit scale multiplies the result: ``logits = scale * (W f + b)``. AdamW moves every number by about the
learning rate per step whatever its size, and entries of a unit vector in D = 512 dimensions are about 0.04: the
shared recipe of 1e-3 turns such a head by a good angle within a few dozen steps. Were the scale of 100 folded
into W, as is often done, entries would be about 4 and the same rate could not move it.

Shape legend: N support images, B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Method, register
from bolt.objectives import cross_entropy
from bolt.task import Adapted, Task
from bolt.training import Recipe, fit


@dataclass(frozen=True)
class LinearProbeSettings(Recipe):
    """The shared recipe."""


def adapt(task: Task, settings: LinearProbeSettings) -> Adapted:
    """Train the head; each epoch sees the features of its own augmented view."""
    scale, device = task.backbone.logit_scale, task.backbone.device
    weight_CD = task.head_CD.to(device).clone().requires_grad_()
    bias_C = torch.zeros(len(weight_CD), device=device, requires_grad=True)
    labels_N = task.support.labels_N.to(device)
    features: dict[int, Tensor] = {}

    def logits_of(features_BD: Tensor) -> Tensor:
        return scale * F.linear(F.normalize(features_BD, dim=-1), weight_CD, bias_C)

    def loss_of_rows(epoch: int, rows: Tensor) -> Tensor:
        if epoch not in features:
            features.clear()
            features[epoch] = task.support.features(epoch + 1).to(device)
        rows = rows.to(device)
        return cross_entropy(logits_of(features[epoch][rows]), labels_N[rows])

    fit([weight_CD, bias_C], loss_of_rows, task.support.order, settings, task.protocol, task.report)
    weight_CD.requires_grad_(False)
    bias_C.requires_grad_(False)
    return Adapted(classify=logits_of, trainable_parameters=weight_CD.numel() + bias_C.numel())


register(
    Method(
        name="linear_probe",
        title="Linear probe",
        paper="https://arxiv.org/abs/2103.00020",
        settings=LinearProbeSettings,
        adapt=adapt,
        support_views=lambda settings: settings.epochs,
        tiny={"epochs": 2, "batch_size": 8},
    )
)
