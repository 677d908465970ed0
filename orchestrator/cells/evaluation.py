"""Scoring what a cell adapted: on its own test split, or on the variants of its target.

The only place where test labels meet predictions.

Shape legend: N images of a split, B batch, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.augment import evaluation_view
from bolt.methods import METHODS
from bolt.task.scoring import accuracy, predict_classes
from bolt.task.support import validation_tenth
from bolt.task.task import Adapted, cosine_classifier
from orchestrator.artifacts import kinds as artifacts
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.core.cell import Cell, DatasetRef
from orchestrator.store.results import Evaluation
from orchestrator.tracks import TRACKS


@dataclass(frozen=True)
class Split:
    """The images a cell is scored on.

    Attributes:
        labels_N: classes of the target's head.
        pixels: ``pixels(start, stop)`` -> uint8 (B, 3, S, S).
        frozen: ``frozen(start, stop)`` -> the frozen tower's features (B, D).
    """

    labels_N: Tensor
    pixels: Callable[[int, int], Tensor]
    frozen: Callable[[int, int], Tensor]


def evaluate(cell: Cell, dataset: DatasetRef, adapted: Adapted, loaded: LoadedArtifacts) -> Evaluation:
    """Score a classifier on one split; the frozen backbone's own score stands beside it, on the same images.

    Where the split holds fewer classes than the head, the score among its own classes stands beside the one among
    all. Raises :class:`bolt.task.scoring.NonFiniteLogits` for logits that are not numbers.
    """
    backbone, head_CD = loaded.backbone(cell.backbone), loaded.head(cell.backbone, cell.dataset)
    split = _split(cell, dataset, loaded)
    labels = split.labels_N
    total_C = torch.bincount(labels, minlength=len(head_CD))
    partial = bool((total_C == 0).any()) and cell.protocol.ood_label_space == "both"
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


def _split(cell: Cell, dataset: DatasetRef, loaded: LoadedArtifacts) -> Split:
    """The test split, or what the protocol's switches make of it."""
    if cell.protocol.meta_scoring == "validation" and METHODS[cell.method.name].meta_recipe is not None:
        return _validation_split(cell, loaded)
    size = loaded.image_size(cell.backbone)
    images = loaded.images(dataset, "test", size)
    labels = loaded.labels_among(cell.dataset, dataset, size)
    frozen = loaded.test_features(cell.backbone, dataset)
    if TRACKS[cell.track].support_split(cell.protocol) == "test" and dataset == cell.dataset:
        # The support was drawn from this very split; what is left of it after the largest one is scored, at every k.
        drawn = loaded.support_pictures(artifacts.support_images(cell)).indices
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[torch.from_numpy(drawn)] = False
        rows = kept.nonzero().flatten()
        return Split(
            labels[rows],
            lambda start, stop: torch.stack([images.image(row) for row in rows[start:stop].tolist()]),
            lambda start, stop: frozen[rows[start:stop]].to(loaded.device),
        )
    return Split(labels, images.batch, lambda start, stop: frozen[start:stop].to(loaded.device))


def _validation_split(cell: Cell, loaded: LoadedArtifacts) -> Split:
    """The tenth of the training split that the authors score their meta-learned start on."""
    size = loaded.image_size(cell.backbone)
    images = loaded.images(cell.dataset, "train", size)
    rows = validation_tenth(len(images)).tolist()
    backbone = loaded.backbone(cell.backbone)

    def pixels(start: int, stop: int) -> Tensor:
        return torch.stack([evaluation_view(images.image(row), size) for row in rows[start:stop]])

    def frozen(start: int, stop: int) -> Tensor:
        return backbone.encode_images(pixels(start, stop))

    return Split(torch.from_numpy(images.labels)[rows], pixels, frozen)
