"""Kind ``Head``: the zero-shot classifier of a dataset; and the accuracy that equal class vectors limit it to.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bolt.task.class_vectors import classes_by_vector, highest_accuracy
from orchestrator.artifacts.images import Images, OfTestSplit
from orchestrator.artifacts.load_backbone import load_backbone
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.spec import FLOAT_BYTES
from orchestrator.catalog import BackboneEntry, Catalog, DatasetEntry, missing_weights, prompt_templates
from orchestrator.core.text_limit import TextLimit
from orchestrator.datasets.opening import open_dataset
from orchestrator.store import Artifact, Builder, CorruptArtifact, Store
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from bolt.clip.backbone import Backbone
    from bolt.task.task import ClassText

SMALL_BACKBONE = 20_000_000
"""Parameters of a backbone whose text tower is run just to count distinct vectors: a second or less."""


@dataclass(frozen=True)
class Head(OfTestSplit):
    """The zero-shot head: one text embedding of unit length per class, (C, D), in float32 whatever the towers use."""

    title = "zero-shot heads"
    gpu_share = 0.25
    part = "head"

    def __post_init__(self) -> None:
        object.__setattr__(self, "backbone", replace(self.backbone, precision=None))  # one head for all number formats

    def size_bytes(self, catalog: Catalog) -> int:
        classes = catalog.dataset(self.dataset.name).classes
        return FLOAT_BYTES * classes * catalog.backbone(self.backbone.name).embed_dim

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Put each class name into the dataset's prompt templates and encode them to one embedding per class."""
        from bolt.clip.tensor_files import save_tensors

        names = self.images.class_names(loaded)
        prompts = prompt_templates(loaded.dataset_entry(self.dataset))
        head_CD = loaded.backbone(self.backbone).zero_shot_head(names, prompts)
        save_tensors({"head": head_CD}, builder.folder / "head.safetensors")
        builder.meta.update(class_names=list(names), prompts=list(prompts))

    def words(self, loaded: LoadedArtifacts) -> ClassText:
        """The class names and prompts that the head was made of."""
        from bolt.task.task import ClassText

        meta = loaded.artifact(self.address).meta
        return ClassText(tuple(meta["class_names"]), tuple(meta["prompts"]))

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """The head (C, D) on the device."""
        from safetensors.torch import load_file

        return load_file(artifact.path("head.safetensors"))["head"].to(device)


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
    from safetensors.numpy import load_file

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
    head_CD = _on_cpu(backbone).zero_shot_head(raw.class_names, prompt_templates(dataset))
    counts = np.bincount(raw.test.labels, minlength=len(raw.class_names)).tolist()
    return text_limit(backbone.name, dataset.name, raw.class_names, head_CD.numpy(force=True), counts)


@lru_cache(maxsize=1)
def _on_cpu(backbone: BackboneEntry) -> Backbone:
    """The backbone, loaded once for the datasets whose limits are computed one after the other."""
    return load_backbone(backbone, "cpu")
