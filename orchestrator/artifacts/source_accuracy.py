"""The accuracy of a source model on its own dataset, beside that of the frozen tower.

Shape legend: N test images, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bolt.task.scoring import accuracy, predict_classes
from bolt.task.task import cosine_classifier
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.test_features import TestFeatures
from orchestrator.core.cell import BackboneRef, DatasetRef


def accuracy_inputs(backbone: BackboneRef, dataset: DatasetRef, image_size: int) -> tuple[Head, TestFeatures]:
    """The artifacts that :func:`source_accuracy` reads. It also reads the test images, an input of both."""
    return Head(backbone, dataset, image_size), TestFeatures(backbone, dataset, image_size)


def source_accuracy(
    tensors: Mapping[str, Tensor], backbone: BackboneRef, dataset: DatasetRef, loaded: LoadedArtifacts
) -> dict[str, Any]:
    """Accuracy in per cent of a fine-tuned and of the frozen tower on a dataset's test split, and its size.

    Args:
        tensors: the fine-tuned tower's, by open_clip's visual names.
        backbone, dataset: their head and test features must be built.
    """
    frozen = loaded.backbone(backbone)
    tower = frozen.tower.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    head, features = accuracy_inputs(backbone, dataset, frozen.image_size)
    images = loaded.get(Images(dataset, "test", frozen.image_size))
    frozen_ND = loaded.get(features)
    classify = cosine_classifier(loaded.get(head), frozen.logit_scale)
    tuned = predict_classes(
        len(images), lambda start, stop: frozen.encode_images(images.batch(start, stop), tower), classify
    )
    zero_shot = predict_classes(len(images), lambda start, stop: frozen_ND[start:stop].to(loaded.device), classify)
    labels = torch.from_numpy(images.labels)
    return {
        "accuracy_fine_tuned": accuracy(tuned.all_classes, labels),
        "accuracy_zero_shot": accuracy(zero_shot.all_classes, labels),
        "test_images": len(images),
    }
