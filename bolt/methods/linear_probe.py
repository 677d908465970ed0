"""Linear probe: the zero-shot head, trained on frozen features.

The head starts at the text embeddings and is trained with its bias by cross-entropy. It is kept at the scale of unit
vectors and the logit scale multiplies the result: ``logits = scale * (W f + b)``. AdamW moves every number by about the
learning rate per step whatever its size, and entries of a unit vector in D = 512 dimensions are about 0.04: the
shared recipe of 1e-3 turns such a head by a good angle within a few dozen steps.

The switch ``linear_probe: as_published`` does as the BOLT authors' code: the scale of 100 is folded into W, whose
entries are then about 4, and the rate halves after every epoch. All rates together then come to two epochs of the first
one, which cannot move such a head: their linear probe is the zero-shot classifier. They tried the rates 1e-3 and 1e-4
and kept the better on the test split; ``candidates`` are these two.

Shape legend: N support images, B batch, C classes, D joint embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from bolt.methods.base import Method, register
from bolt.methods.common.frozen_features import train_on_features
from bolt.task.classifiers import LinearClassifier
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class LinearProbeSettings(TrainingRecipe):
    """The shared recipe."""


def adapt(task: Task, settings: LinearProbeSettings) -> Adapted:
    """Train the head; each epoch sees the features of its own augmented view."""
    scale, device, recipe = task.backbone.logit_scale, task.backbone.device, settings
    folded = 1.0
    if task.protocol.linear_probe == "as_published":
        folded, recipe = scale, replace(settings, schedule="halving")
    weight_CD = (folded * task.head_CD.to(device)).requires_grad_()
    bias_C = torch.zeros(len(weight_CD), device=device, requires_grad=True)

    current = LinearClassifier(weight_CD, bias_C, scale / folded)

    def adapted() -> Adapted:
        head, bias = weight_CD.detach().clone(), bias_C.detach().clone()
        return Adapted(LinearClassifier(head, bias, scale / folded), None, head.numel() + bias.numel())

    return train_on_features(task, [weight_CD, bias_C], current, recipe, adapted)


register(
    Method(
        name="linear_probe",
        title="Linear probe",
        paper="https://arxiv.org/abs/2103.00020",
        settings_class=LinearProbeSettings,
        adapt=adapt,
        baseline_crop=True,
        candidates=lambda settings: (settings, replace(settings, learning_rate=settings.learning_rate / 10)),
        support_feature_views=lambda settings: settings.epochs,
        test_settings={"epochs": 2, "batch_size": 8},
    )
)
