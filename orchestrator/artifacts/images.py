"""Kind ``Images``, a decoded split of a dataset, and the base class of the kinds that are made from a test split."""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from bolt.clip.input_size import InputSize
from bolt.clip.preprocess import evaluation_pixels
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec, FrozenTower
from orchestrator.catalog import Catalog, DatasetEntry, excluded_images
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.datasets import images as decoded
from orchestrator.store import Artifact, Builder
from orchestrator.util.errors import UserError

TYPICAL_PIXELS = 430**2
"""Assumed number of pixels of an image whose size the catalog does not give, as in a photograph of 500 x 375."""

TYPICAL_ASPECT = 4 / 3
"""Assumed ratio of the long side to the short side of an image whose size the catalog does not give."""

_TITLE_AND_HINT = {
    "train": ("decoded training splits", "fewer sources, or adopted checkpoints, which need no images"),
    "test": ("decoded test splits", "fewer datasets, or backbones of one image size"),
    "validation": ("decoded validation parts", "a protocol whose validation is drawn or none"),
    "test_whole": ("test splits for random crops", "fewer datasets of the tta track"),
}


@dataclass(frozen=True)
class Images(ArtifactSpec):
    """A decoded split of a dataset: uint8 pixels and labels.

    Attributes:
        split: ``test`` and ``validation`` hold a part of the data at the tower's resolution. ``train`` and
            ``test_whole`` hold the training and test images for random crops: large images are scaled down
            (:data:`~orchestrator.datasets.images.SHORT_SIDE_CAP`), and the others keep their size.
        image_size: the side of the tower's input in pixels, and the way to resize an image to it.
    """

    kind = "images"
    cache_size = 16

    dataset: DatasetRef
    split: str
    image_size: InputSize

    @property
    def title(self) -> str:
        return _TITLE_AND_HINT[self.split][0]

    @property
    def shrink_hint(self) -> str:
        return _TITLE_AND_HINT[self.split][1]

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.dataset.name, self.split, str(self.image_size)

    @property
    def opened_dataset(self) -> str:
        return self.dataset.name

    def missing_input(self, catalog: Catalog, data_root: Path | None) -> UserError | None:
        from orchestrator.datasets.opening import open_dataset

        entry = catalog.dataset(self.dataset.name)
        if self.split != "validation" or open_dataset(entry, data_root).validation:
            return None
        return _no_validation_part(entry.name)

    def size_bytes(self, catalog: Catalog) -> int:
        entry = catalog.dataset(self.dataset.name)
        count = entry.sizes.train if self.split == "train" else entry.sizes.test
        cap = decoded.SHORT_SIDE_CAP * self.image_size.side
        return 3 * count * (self.image_size.side**2 if self._is_at_tower_size else typical_pixels(entry, cap))

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Decode the split. Record class names, the images' positions in the data, and differences from the catalog.

        Raises ``UserError`` for missing files, for images that cannot be decoded, and if the data has no such split.
        """
        from orchestrator.datasets.opening import open_dataset
        from orchestrator.datasets.splits import split_manifest

        entry = cache.dataset_entry(self.dataset)
        raw = open_dataset(entry, cache.data_root)
        transform = partial(evaluation_pixels, size=self.image_size)
        if not self._is_at_tower_size:
            transform = partial(decoded.capped_pixels, short_side=decoded.SHORT_SIDE_CAP * self.image_size.side)
        part = raw.validation if self.split == "validation" else raw.parts["train" if self.split == "train" else "test"]
        if part is None:
            raise _no_validation_part(entry.name)
        verify = (entry.name, *cache.settings.data_options)
        decoded.write_images(part, transform, builder.folder, verify, builder.progress)
        np.save(builder.folder / "indices.npy", part.indices)
        manifest = split_manifest(entry, raw)
        builder.meta.update(
            class_names=list(raw.class_names),
            images=len(part),
            excluded=len(excluded_images(entry, cache.data_root)),  # of both splits
            smallest_class=int(np.bincount(part.labels, minlength=len(raw.class_names)).min()),
            split=manifest.model_dump(),
            differs=manifest.differs(entry),
        )

    @property
    def _is_at_tower_size(self) -> bool:
        return self.split in ("test", "validation")

    def load(self, artifact: Artifact, device: str) -> decoded.Images:
        """Return the images, with their labels in memory and their pixels mapped from disk."""
        return decoded.read_images(artifact.path)

    def class_names(self, cache: ArtifactCache) -> tuple[str, ...]:
        """Return the dataset's class names in label order, from the manifest of the decoded images."""
        return tuple(cache.artifact(self.address).meta["class_names"])


@dataclass(frozen=True)
class OfTestSplit(ArtifactSpec):
    """Base class of artifacts that a backbone computes from the images or the class names of a dataset's test split.

    A subclass that overrides :attr:`images` reads another split. ``part`` names what is computed, such as ``head``; the
    artifact's address contains it.
    """

    kind = "features"
    shrink_hint = "fewer backbones or datasets"
    cache_size = 8
    part: ClassVar[str]

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: InputSize

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, self.part

    @property
    def images(self) -> Images:
        """The decoded test split."""
        return Images(self.dataset, "test", self.image_size)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return FrozenTower(self.backbone), self.images


def _no_validation_part(dataset: str) -> UserError:
    """Return the error for a dataset that lacks the validation part which the protocol asks for."""
    what = f"{dataset} has no validation part, on which methods choose settings under this protocol"
    hint = "leave the dataset out, or run it under a protocol with validation: none"
    return UserError(what, where=f"dataset {dataset}", hint=hint)


def typical_pixels(entry: DatasetEntry, cap: int | None = None) -> int:
    """Return the estimated pixels of one image of a dataset, after its shortest side is reduced to ``cap`` pixels.

    The image keeps its size if its shortest side is at most ``cap`` pixels, or if ``cap`` is ``None``.
    """
    if entry.image_side is not None:
        return min(entry.image_side, cap or entry.image_side) ** 2
    return round(min(TYPICAL_PIXELS, TYPICAL_ASPECT * cap**2 if cap else math.inf))
