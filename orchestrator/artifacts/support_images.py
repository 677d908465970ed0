"""Kind ``SupportImages``: the labelled images of a dataset from which cells take their supports.

Shape legend: N support images, M images of the largest support, S image side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bolt.clip.input_size import InputSize
from bolt.task.support import FIELD_DRAWS, SupportDraw, draw_support
from bolt.task.task import EVALUATION_VIEW
from orchestrator.artifacts.images import typical_pixels
from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec
from orchestrator.artifacts.views import ImageViews, Views, place_images
from orchestrator.catalog import Catalog, dataset_folder
from orchestrator.catalog.references import draw_files
from orchestrator.core.cell import DatasetRef
from orchestrator.datasets import images as decoded
from orchestrator.store import Artifact, Builder
from orchestrator.util.errors import UserError
from orchestrator.util.identity import ADDED_LATER


@dataclass(frozen=True)
class SupportImages(ArtifactSpec):
    """The labelled images of the largest support: k images of each class. Large images are scaled down.

    In a nested draw, the images for a smaller k are among those for a larger k, so cells of every smaller k read this
    artifact too. With any other draw, only cells of this k read it.

    Attributes:
        shots: images per class, k.
        draw, pool: as in :func:`bolt.task.support.draw_support`.
        split: the split from which the images are drawn.
        listed: the digest of the file that lists the images, if the protocol takes them from a file.
        short_side: the largest short side of a stored image in pixels; ``None`` to keep the size of the images. A
            photograph of 12 megapixels takes 36 MB at its own size and 0.8 MB with a short side of 448 pixels.
    """

    version = 2
    kind = "images"
    title = "support images"
    shrink_hint = "fewer seeds or datasets, or at most 16 shots"
    cache_size = 8

    dataset: DatasetRef
    seed: int
    shots: int
    draw: SupportDraw = "nested"
    pool: Literal["train", "less_validation"] = "train"
    split: Literal["train", "test"] = "train"
    short_side: int | None = field(default=None, metadata=ADDED_LATER)
    listed: str | None = field(default=None, metadata=ADDED_LATER)

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.dataset.name, "support", f"s{self.seed}"

    @property
    def opened_dataset(self) -> str:
        return self.dataset.name

    def missing_input(self, catalog: Catalog, data_root: Path | None) -> UserError | None:
        try:
            if self.listed == "absent":
                draw_files(dataset_folder(catalog.dataset(self.dataset.name), data_root), self.shots, self.seed)
        except UserError as error:  # this error names the missing list of drawn images
            return error
        return None

    def size_bytes(self, catalog: Catalog) -> int:
        return 3 * self.image_count(catalog) * typical_pixels(catalog.dataset(self.dataset.name), self.short_side)

    def image_count(self, catalog: Catalog) -> int:
        """Return an upper bound of the number of images. There are fewer if a class has fewer than ``shots`` images."""
        entry = catalog.dataset(self.dataset.name)
        available = entry.sizes.train if self.split == "train" else entry.sizes.test
        return min(entry.classes * self.shots, available)

    def drawn(
        self, labels: NDArray[np.int64], validation_labels: NDArray[np.int64], class_count: int | None = None
    ) -> NDArray[np.int64]:
        """Draw the images; return their positions in the split, ascending, (M,).

        ``labels`` has the class of each image of the split, ``validation_labels`` the class of each validation image.
        """
        drawn = draw_support(
            labels, self.shots, dataset=self.dataset.name, seed=self.seed, short_classes="take_all",
            class_count=class_count, draw=self.draw, pool=self.pool, validation_labels=validation_labels,
        )  # fmt: skip
        return np.unique(drawn)

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Draw or read the positions of the images in the split, and decode only these images."""
        from orchestrator.datasets.listed_draws import read_draw
        from orchestrator.datasets.opening import open_dataset

        entry = cache.dataset_entry(self.dataset)
        raw = open_dataset(entry, cache.data_root)
        part = raw.parts[self.split]
        validation_labels = raw.validation.labels if raw.validation else np.zeros(0, dtype=np.int64)
        if self.listed is None:
            indices = self.drawn(part.labels, validation_labels, len(raw.class_names))
        else:
            listed = read_draw(raw, draw_files(dataset_folder(entry, cache.data_root), self.shots, self.seed))
            indices = np.unique(listed["train"])
            for name, positions in listed.items():
                np.save(builder.folder / f"listed_{name}.npy", positions)
        transform = partial(decoded.capped_pixels, short_side=self.short_side)
        verify = (entry.name, *cache.settings.data_options)
        decoded.write_images(part.subset(indices), transform, builder.folder, verify, builder.progress)
        np.save(builder.folder / "indices.npy", indices)
        np.save(builder.folder / "labels_of_split.npy", part.labels)
        if self.draw in FIELD_DRAWS:
            np.save(builder.folder / "labels_of_validation.npy", validation_labels)
        builder.meta.update(class_names=list(raw.class_names), images=len(indices))

    def load(self, artifact: Artifact, device: str) -> SupportPool:
        validation, labels_of_validation = "labels_of_validation.npy", np.zeros(0, dtype=np.int64)
        if validation in artifact.files:
            labels_of_validation = np.load(artifact.path(validation))
        lists = {name: file for name in ("train", "val") if (file := f"listed_{name}.npy") in artifact.files}
        return SupportPool(
            dataset=self.dataset.name,
            seed=self.seed,
            images=decoded.read_images(artifact.path),
            indices=np.load(artifact.path("indices.npy")),
            labels_of_split=np.load(artifact.path("labels_of_split.npy")),
            labels_of_validation=labels_of_validation,
            listed={name: np.load(artifact.path(file)) for name, file in lists.items()},
        )


@dataclass(frozen=True)
class SupportPool:
    """The images from which a cell's support is taken; the pixels are mapped from disk.

    Attributes:
        images: the stored images in the order of ``indices``; on a GPU if the views are made there.
        indices: positions of the images in the split from which they were drawn, ascending, (M,).
        labels_of_split: the class of every image of this split.
        labels_of_validation: the class of every image of the validation part, if a published code's draw is reproduced;
            empty for any other draw. Some of these codes draw validation images first, which changes the draw of the
            support.
        listed: ``train`` and ``val`` -> positions of the images that a file lists for this part; empty without a file.
    """

    dataset: str
    seed: int
    images: ImageViews
    indices: NDArray[np.int64]
    labels_of_split: NDArray[np.int64]
    labels_of_validation: NDArray[np.int64]
    listed: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    def pixels(self, view: int, indices: NDArray[np.int64], size: InputSize, views: Views) -> Tensor:
        """Return one view of the images at the positions ``indices`` of the split: uint8 (N, 3, S, S)."""
        rows = self.indices.searchsorted(indices).tolist()
        if view == EVALUATION_VIEW:
            return self.images.evaluation_views(rows, size)
        where = indices.tolist()
        return views.draw(self.images, rows, view, size=size.side, dataset=self.dataset, seed=self.seed, indices=where)


def support_pool(spec: SupportImages, cache: ArtifactCache) -> SupportPool:
    """Return the loaded images of a support, on the GPU if this process computes on one."""
    pool = cache.get(spec)
    return replace(pool, images=place_images(spec, pool.images, cache))
