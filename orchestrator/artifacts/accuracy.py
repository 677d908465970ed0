"""How well a source does on its own task, beside the frozen tower.

Shape legend: N test images, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bolt.task.scoring import accuracy, predict_classes
from bolt.task.task import cosine_classifier
from orchestrator.artifacts.kinds import ArtifactSpec, Head, TestFeatures
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.core.cell import BackboneRef, DatasetRef


def needs_for_accuracy(backbone: BackboneRef, dataset: DatasetRef, image_size: int) -> tuple[ArtifactSpec, ...]:
    """The artifacts :func:`source_accuracy` reads, beside those they follow from."""
    return Head(backbone, dataset, image_size), TestFeatures(backbone, dataset, image_size)


def source_accuracy(
    tensors: Mapping[str, Tensor], backbone: BackboneRef, dataset: DatasetRef, loaded: LoadedArtifacts
) -> dict[str, Any]:
    """Accuracy in per cent of a tower and of the frozen one on a dataset's test split, and how many images it has.

    Args:
        tensors: the tower's, by open_clip's visual names.
        backbone, dataset: whose head and test features are built in the loaded's store.
    """
    frozen = loaded.backbone(backbone)
    tower = frozen.tower.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    test = loaded.images(dataset, "test", frozen.image_size)
    frozen_ND = loaded.test_features(backbone, dataset)
    classify = cosine_classifier(loaded.head(backbone, dataset), frozen.logit_scale)

    def tuned_features(start: int, stop: int) -> Tensor:
        return frozen.encode_images(test.batch(start, stop), tower)

    of_tower = predict_classes(len(test), tuned_features, classify)
    of_frozen = predict_classes(len(test), lambda start, stop: frozen_ND[start:stop].to(loaded.device), classify)
    labels = torch.from_numpy(test.labels)
    return {
        "accuracy_fine_tuned": accuracy(of_tower.all_classes, labels),
        "accuracy_zero_shot": accuracy(of_frozen.all_classes, labels),
        "test_images": len(test),
    }
