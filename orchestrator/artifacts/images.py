"""Stage ``images``: decode each split once."""

from __future__ import annotations

from functools import partial

import numpy as np

from bolt.task.support import draw_support
from orchestrator.artifacts.kinds import Images, SupportImages
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.catalog import excluded_images
from orchestrator.datasets.images import evaluation_pixels, rgb_pixels, training_pixels, write_images
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.splits import split_manifest
from orchestrator.store import Builder


def build_images(spec: Images, loaded: LoadedArtifacts, builder: Builder) -> None:
    """Decode one split of one dataset; notes class words, its images' positions, and what differs from the catalog."""
    entry = loaded.dataset_entry(spec.dataset)
    raw = open_dataset(entry, loaded.data_root)
    pixels_of = evaluation_pixels if spec.split == "test" else training_pixels
    transform = partial(pixels_of, size=spec.image_size, exif_rotation=entry.exif_rotation)
    part = raw.part("train" if spec.split == "train" else "test")
    write_images(part, transform, builder.folder, dataset=entry.name, progress=builder.progress)
    np.save(builder.folder / "indices.npy", part.indices)
    manifest = split_manifest(entry, raw)
    builder.meta.update(
        class_names=list(raw.class_names),
        images=len(part),
        excluded=len(excluded_images(entry, loaded.data_root)),  # of both parts
        smallest_class=int(np.bincount(part.labels, minlength=len(raw.class_names)).min()),
        split=manifest.as_dict(),
        differs=manifest.differs(entry),
    )


def build_support_images(spec: SupportImages, loaded: LoadedArtifacts, builder: Builder) -> None:
    """Decode the largest support only: a few images per class, however large the training split is."""
    entry = loaded.dataset_entry(spec.dataset)
    raw = open_dataset(entry, loaded.data_root)
    part = raw.part(spec.split)
    drawn = draw_support(
        part.labels, spec.shots, dataset=spec.dataset.name, seed=spec.seed, short_classes="take_all",
        class_count=len(raw.class_names), draw=spec.draw, pool=spec.pool,
    )  # fmt: skip
    indices = np.sort(drawn)
    transform = partial(rgb_pixels, exif_rotation=entry.exif_rotation)
    write_images(part.subset(indices), transform, builder.folder, dataset=entry.name)
    np.save(builder.folder / "indices.npy", indices)
    np.save(builder.folder / "labels_of_split.npy", part.labels)
    builder.meta.update(class_names=list(raw.class_names), images=len(indices))
