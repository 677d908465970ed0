"""Linear probe: a linear head on frozen features, trained from the zero-shot head (Radford et al., 2021).

``logits = scale * (W f + b)`` for a unit feature f. W starts at the text embeddings and b at zero; both are trained by
cross-entropy. W keeps the scale of unit vectors, because AdamW moves every number by about the learning rate per step,
whatever its size. The entries of a unit vector in D = 512 dimensions are about 0.04, so the shared learning rate of
1e-3 turns the head by a large angle within a few dozen steps.

The switch ``linear_probe: as_published`` does what the BOLT authors' code does:

- The factor 100 is multiplied into W, whose entries are then about 4, and the learning rate halves after every epoch.
  All rates together come to two epochs at the first rate. That cannot move such a head: their linear probe is the
  zero-shot classifier.
- They tried the learning rates 1e-3 and 1e-4 and kept the better on the test split; ``candidates`` are these two.

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
    """The training recipe that all methods share."""


def adapt(task: Task, settings: LinearProbeSettings) -> Adapted:
    """Train the head. Every epoch uses the features of another augmented view."""
    scale, device, recipe = task.backbone.logit_scale, task.backbone.device, settings
    weight_scale = 1.0
    if task.protocol.linear_probe == "as_published":
        weight_scale, recipe = scale, replace(settings, schedule="halving")
    weight_CD = (weight_scale * task.head_CD.to(device)).requires_grad_()
    bias_C = torch.zeros(len(weight_CD), device=device, requires_grad=True)

    in_training = LinearClassifier(weight_CD, bias_C, scale / weight_scale)

    def adapted() -> Adapted:
        head, bias = weight_CD.detach().clone(), bias_C.detach().clone()
        return Adapted(LinearClassifier(head, bias, scale / weight_scale), None, head.numel() + bias.numel())

    return train_on_features(task, [weight_CD, bias_C], in_training, recipe, adapted)


register(
    Method(
        name="linear_probe",
        title="Linear probe",
        summary="trains a linear head on frozen features, from the text head",
        paper="https://arxiv.org/abs/2103.00020",
        settings_class=LinearProbeSettings,
        adapt=adapt,
        baseline_crop=True,
        candidates=lambda settings: (settings, replace(settings, learning_rate=settings.learning_rate / 10)),
        support_feature_views=lambda settings: settings.epochs,
        test_settings={"epochs": 2, "batch_size": 8},
    )
)
