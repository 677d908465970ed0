"""Prototypes: classify by the mean feature of each class, mixed with its text embedding (cite your paper here)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional as F

from bolt.methods.base import register
from bolt.methods.common.frozen_features import unit_support_features
from bolt.task.classifiers import CosineClassifier
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.util.ranges import Checked, Fraction


@dataclass(frozen=True)
class PrototypeSettings(Checked):
    """The settings of the prototypes.

    Attributes:
        weight: share of the prototypes in the mixture with the text embeddings.
    """

    weight: Fraction = 0.5


@register(
    name="prototype",
    title="Prototypes",
    paper="https://example.org/your-paper",
    support_feature_views=lambda settings: 0,
)
def adapt(task: Task, settings: PrototypeSettings) -> Adapted:
    """Average the un-augmented support features of each class, and mix them with the text head."""
    features_ND = unit_support_features(task, EVALUATION_VIEW)
    labels_N = task.support.labels_N
    sums_CD = torch.zeros_like(task.head_CD).index_add_(0, labels_N, features_ND)
    prototypes_CD = F.normalize(sums_CD, dim=-1)
    mixed_CD = F.normalize((1 - settings.weight) * task.head_CD + settings.weight * prototypes_CD, dim=-1)
    return Adapted(classify=CosineClassifier(mixed_CD, task.backbone.logit_scale))
