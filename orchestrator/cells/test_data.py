"""The test images and labels that a cell is scored on.

Shape legend: N images of a split, B batch, C classes, D embedding width, S image side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from bolt.clip.augment import evaluation_view
from bolt.clip.backbone import Backbone
from bolt.methods import METHODS
from bolt.task.support import validation_tenth
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images, class_names
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.required import scored_on_validation, support_images
from orchestrator.artifacts.test_features import TestFeatures
from orchestrator.core.cell import Cell, DatasetRef
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError


@dataclass(frozen=True)
class TestSplit:
    """The images of one dataset that a cell is scored on.

    Attributes:
        labels_N: classes of the target's head.
        pixels: ``pixels(start, stop)`` -> uint8 (B, 3, S, S).
        frozen: ``frozen(start, stop)`` -> the frozen tower's features (B, D).
    """

    labels_N: Tensor
    pixels: Callable[[int, int], Tensor]
    frozen: Callable[[int, int], Tensor]


@dataclass(frozen=True)
class TestData:
    """What scoring a cell reads, whatever method made the classifier.

    Attributes:
        head_CD: the target's zero-shot head.
        split: ``split(dataset)`` reads the test images and labels of one dataset.
    """

    cell: Cell
    backbone: Backbone
    head_CD: Tensor
    split: Callable[[DatasetRef], TestSplit]


def gather_test_data(cell: Cell, loaded: LoadedArtifacts) -> TestData:
    """Gather what scoring a cell reads; splits are read when they are asked for.

    Raises ``FileNotFoundError`` for an artifact that is not built.
    """
    head = Head(cell.backbone, cell.dataset, loaded.image_size(cell.backbone))
    return TestData(cell, loaded.backbone(cell.backbone), loaded.get(head), partial(_split, cell, loaded))


def target_labels(target: DatasetRef, dataset: DatasetRef, image_size: int, loaded: LoadedArtifacts) -> Tensor:
    """Test labels of ``dataset`` as class numbers of ``target``, (N,).

    The classes of a variant of the target (ImageNet-A of ImageNet) are matched by their names. Raises ``UserError`` for
    a class that the target does not have.
    """
    labels = torch.from_numpy(loaded.get(Images(dataset, "test", image_size)).labels)
    if dataset == target:
        return labels
    number = {name: index for index, name in enumerate(class_names(loaded, target, image_size))}
    names = class_names(loaded, dataset, image_size)
    unknown = [name for name in names if name not in number]
    if unknown:
        raise UserError(f"{dataset.name} has classes that {target.name} does not have: {', '.join(unknown[:5])}")
    return torch.tensor([number[name] for name in names])[labels]


def _split(cell: Cell, loaded: LoadedArtifacts, dataset: DatasetRef) -> TestSplit:
    """The test split of a dataset, or the images that the protocol scores instead."""
    if scored_on_validation(cell):
        return _validation_split(cell, loaded)
    size = loaded.image_size(cell.backbone)
    images = loaded.get(Images(dataset, "test", size))
    labels = target_labels(cell.dataset, dataset, size, loaded)
    frozen = loaded.get(TestFeatures(cell.backbone, dataset, size))
    drawn_here = TRACKS[cell.track].support_split(cell.protocol) == "test" and dataset == cell.dataset
    if drawn_here and METHODS[cell.method.name].uses_support:
        # The support was drawn from this split. The largest support is left out, so that every k is scored on the same
        # images.
        kept = torch.ones(len(labels), dtype=torch.bool)
        kept[torch.from_numpy(loaded.get(support_images(cell)).indices)] = False
        rows = kept.nonzero().flatten()
        return TestSplit(
            labels[rows],
            lambda start, stop: torch.stack([images.image(row) for row in rows[start:stop].tolist()]),
            lambda start, stop: frozen[rows[start:stop]].to(loaded.device),
        )
    return TestSplit(labels, images.batch, lambda start, stop: frozen[start:stop].to(loaded.device))


def _validation_split(cell: Cell, loaded: LoadedArtifacts) -> TestSplit:
    """The tenth of the training split on which the authors of BOLT score their meta-learned start."""
    size = loaded.image_size(cell.backbone)
    images = loaded.get(Images(cell.dataset, "train", size))
    rows = validation_tenth(len(images)).tolist()
    backbone = loaded.backbone(cell.backbone)

    def pixels(start: int, stop: int) -> Tensor:
        return torch.stack([evaluation_view(images.image(row), size) for row in rows[start:stop]])

    def frozen(start: int, stop: int) -> Tensor:
        return backbone.encode_images(pixels(start, stop))

    return TestSplit(torch.from_numpy(images.labels)[rows], pixels, frozen)
