"""Split recipes: how a dataset is divided into training and test images.

``official``        the parts that the dataset comes with
``eighty_twenty``   80 % train, 20 % test, drawn per class
``eighty_ten_ten``  80 % train, 10 % validation (left out), 10 % test, drawn per class
``published``       the split in the BOLT authors' code: 80/20 at random with seed 42; then 10 % of the training part,
                    at most 5000 images, are left out with seed 0

Shape legend: N images of a dataset.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.validation import StrictModel
from orchestrator.datasets.part import RawDataset

PUBLISHED_VALIDATION_CAP = 5000


class SplitManifest(StrictModel):
    """The number of classes of a dataset, and the number of images and the checksum of each part.

    A checksum is made of the images' positions and labels, so equal checksums mean equal splits.
    """

    dataset: str
    recipe: str
    classes: int
    counts: dict[str, int]
    sha256: dict[str, str]

    def differs(self, entry: DatasetEntry, excluded: int = 0) -> list[str]:
        """List the numbers of classes and images that differ from the catalog entry.

        A part may have up to ``excluded`` images fewer, which were excluded after the entry was made.
        """
        rows = [("classes", entry.classes, self.classes, 0)]
        rows += [(part, stated, self.counts[part], excluded) for part, stated in entry.sizes]
        return [f"{name}: catalog {stated}, data {found}" for name, stated, found, fewer in rows
                if not found <= stated <= found + fewer]  # fmt: skip


def split_manifest(entry: DatasetEntry, raw: RawDataset) -> SplitManifest:
    """Return the manifest of an opened dataset."""
    arrays = {name: np.stack([part.indices, part.labels]).astype("<i8") for name, part in raw.parts.items()}
    return SplitManifest(
        dataset=entry.name,
        recipe=entry.splits.recipe,
        classes=len(raw.class_names),
        counts={name: len(part) for name, part in raw.parts.items()},
        sha256={name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in arrays.items()},
    )


def split_indices(labels: NDArray[np.int64], recipe: str, dataset: str) -> dict[str, NDArray[np.int64]]:
    """Draw the positions of the ``train`` and ``test`` images among the N images of an undivided dataset.

    Args:
        labels: class of each image, (N,).
        recipe: any recipe but ``official``.
        dataset: the dataset's name, on which the draw depends.
    """
    if recipe == "published":
        return _published(len(labels))
    from bolt.seeds import numpy_generator

    validation = 0.1 if recipe == "eighty_ten_ten" else 0.0
    train, test = [], []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        members = members[numpy_generator("split", dataset, int(label)).permutation(len(members))]
        first = int(0.8 * len(members))
        train.append(members[:first])
        test.append(members[first + round(validation * len(members)) :])
    return {"train": np.sort(np.concatenate(train)), "test": np.sort(np.concatenate(test))}


def _published(total: int) -> dict[str, NDArray[np.int64]]:
    import torch

    def permutation(count: int, seed: int) -> NDArray[np.int64]:
        return np.asarray(torch.randperm(count, generator=torch.Generator().manual_seed(seed)))

    first = int(0.8 * total)
    order = permutation(total, 42)
    train, test = order[:first], order[first:]
    kept = first - min(int(0.1 * first), PUBLISHED_VALIDATION_CAP)
    # The order within a part does not matter, and reading a file from front to back is much faster.
    return {"train": np.sort(train[permutation(first, 0)[:kept]]), "test": np.sort(test)}
