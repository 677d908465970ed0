"""Scores an adapted classifier on a test split: the only place where test labels meet predictions.

Shape legend: B batch, C classes, D embedding width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bolt.task.scoring import accuracy, predict_classes
from bolt.task.task import Adapted, cosine_classifier
from orchestrator.cells.test_data import TestData
from orchestrator.core.cell import DatasetRef
from orchestrator.store.results import Evaluation


def evaluate(test: TestData, dataset: DatasetRef, adapted: Adapted) -> Evaluation:
    """Score a classifier on one dataset, and the frozen backbone on the same images.

    If the dataset has fewer classes than the head, and the protocol asks for it, the score among its own classes is
    given too. Raises :class:`bolt.task.scoring.NonFiniteLogits` for logits that are not numbers.
    """
    backbone, head_CD = test.backbone, test.head_CD
    split = test.split(dataset)
    labels = split.labels_N
    total_C = torch.bincount(labels, minlength=len(head_CD))
    partial = bool((total_C == 0).any()) and test.cell.protocol.ood_label_space == "both"
    own_C = total_C > 0 if partial else None

    def adapted_features(start: int, stop: int) -> Tensor:
        if adapted.tower is None:
            return split.frozen(start, stop)
        return backbone.encode_images(split.pixels(start, stop), adapted.tower)

    found = predict_classes(len(labels), adapted_features, adapted.classify, own_C)
    zero_shot = predict_classes(len(labels), split.frozen, cosine_classifier(head_CD, backbone.logit_scale), own_C)
    correct_C = torch.bincount(labels[found.all_classes == labels], minlength=len(head_CD))
    return Evaluation(
        dataset=dataset.name,
        accuracy=accuracy(found.all_classes, labels),
        correct=int(correct_C.sum()),
        total=len(labels),
        accuracy_zero_shot=accuracy(zero_shot.all_classes, labels),
        per_class=tuple((int(c), int(n)) for c, n in zip(correct_C, total_C, strict=True)),
        accuracy_own_classes=accuracy(found.own_classes, labels) if partial else None,
        accuracy_zero_shot_own_classes=accuracy(zero_shot.own_classes, labels) if partial else None,
    )
