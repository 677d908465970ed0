"""Stage ``images``: decode each split once."""

from __future__ import annotations

from orchestrator.datasets.images import evaluation_pixels, training_pixels, write_images
from orchestrator.datasets.loaders import open_dataset
from orchestrator.stages.artifacts import Images
from orchestrator.store import Builder
from orchestrator.workbench import Workbench


def build_images(need: Images, bench: Workbench, builder: Builder) -> None:
    """Decode one split of one dataset; notes class words, counts and what differs from the catalog."""
    entry = bench.dataset_entry(need.dataset)
    raw = open_dataset(entry, bench.data_root)
    transform = evaluation_pixels if need.split == "test" else training_pixels
    part = raw.part(need.split)
    write_images(part, lambda image: transform(image, need.image_size), builder.folder)
    found = {"classes": len(raw.class_names), need.split: len(part)}
    stated = {"classes": entry.classes, **entry.sizes.model_dump()}
    builder.meta.update(
        class_names=list(raw.class_names),
        images=len(part),
        smallest_class=min((int(n) for n in _counts(part.labels)), default=0),
        differs=[f"{key}: catalog {stated[key]}, data {value}" for key, value in found.items() if stated.get(key) != value],
    )


def _counts(labels: object) -> list[int]:
    import numpy as np

    return [int(count) for count in np.bincount(np.asarray(labels))]
