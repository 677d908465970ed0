"""How many class vectors of a zero-shot head are distinct, for stored heads and for heads that are not built yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from bolt.task.class_vectors import classes_by_vector, highest_accuracy
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.catalog import BackboneEntry, DatasetEntry, missing_weights, prompt_templates
from orchestrator.catalog.load_backbone import load_backbone
from orchestrator.core.text_limit import TextLimit
from orchestrator.datasets.opening import open_dataset
from orchestrator.store import CorruptArtifact, Store
from orchestrator.util.errors import UserError

SMALL_BACKBONE = 20_000_000
"""Parameters of a backbone whose text tower is run just to count distinct vectors: a second or less."""


def text_limit(
    backbone: str,
    dataset: str,
    words: Sequence[str],
    head_CD: NDArray[np.float32],
    images_per_class: Sequence[int] | None = None,
) -> TextLimit:
    """The limit of one head (C, D). Without ``images_per_class``, classes are taken to have equally many images."""
    groups = classes_by_vector(head_CD)
    return TextLimit(
        backbone,
        dataset,
        len(words),
        len(groups),
        highest_accuracy(groups, images_per_class or [1] * len(words)),
        tuple(tuple(words[label] for label in group) for group in groups if len(group) > 1),
    )


def stored_text_limit(store: Store, head: Head) -> TextLimit | None:
    """The limit of a head that the store has; ``None`` if it has none, or a damaged one."""
    test, counts = Images(head.dataset, "test", head.image_size), None
    try:
        built = store.artifact(head.address, head.identity)
        if built is None:
            return None
        words = built.meta["class_names"]
        if images := store.artifact(test.address, test.identity):
            counts = np.bincount(np.load(images.path("labels.npy")), minlength=len(words)).tolist()
        vectors = load_file(built.path("head.safetensors"))["head"]
    except (CorruptArtifact, OSError):
        return None
    return text_limit(head.backbone.name, head.dataset.name, words, vectors, counts)


def computed_text_limit(backbone: BackboneEntry, dataset: DatasetEntry, data_root: Path | None) -> TextLimit | None:
    """The limit of a head that is not built.

    ``None`` if the backbone is large, its weights are no local file, or the images are not here.
    """
    if backbone.parameters > SMALL_BACKBONE or backbone.weights.file is None or missing_weights(backbone):
        return None
    try:
        raw = open_dataset(dataset, data_root)
    except UserError:  # the checks of inputs say what is missing
        return None
    head_CD = load_backbone(backbone, "cpu").zero_shot_head(raw.class_names, prompt_templates(dataset))
    counts = np.bincount(raw.test.labels, minlength=len(raw.class_names)).tolist()
    return text_limit(backbone.name, dataset.name, raw.class_names, head_CD.numpy(force=True), counts)
