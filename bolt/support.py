"""Which labelled images a method may learn from, and in which order it sees them.

Both depend on the dataset and the seed alone: not on the backbone, the method, the process, or on what was drawn
before. A draw of k images per class is a prefix of every larger draw.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bolt.seeds import numpy_generator, torch_generator


class TooFewImages(ValueError):
    """A class with fewer training images than shots."""


def draw_support(
    labels: ArrayLike,
    shots: int,
    *,
    dataset: str,
    seed: int,
    short_classes: Literal["refuse", "take_all"] = "refuse",
    class_count: int | None = None,
) -> NDArray[np.int64]:
    """Positions, in ``labels``, of ``shots`` images of every class.

    Rank-major: every class's first image in class order, then every class's second, and so on, so that fewer shots
    are a prefix of more. Each class is permuted by its own generator, so its images do not depend on other classes.
    With ``class_count`` the classes are 0 ... class_count - 1, of which none may be without an image; without it they
    are those that occur.

    Raises ``TooFewImages`` for a class that has none, or fewer than ``shots`` unless ``short_classes`` is
    ``take_all``.
    """
    if shots < 1:
        raise ValueError(f"a support has at least one image per class, not {shots}")
    labels_N = np.asarray(labels)
    classes = np.unique(labels_N) if class_count is None else np.arange(class_count)
    by_class = []
    for label in classes.tolist():
        members = np.flatnonzero(labels_N == label)
        if len(members) < (shots if short_classes == "refuse" else 1):
            raise TooFewImages(
                f"class {label} of {dataset} has {len(members)} training images, fewer than {shots} shots"
            )
        by_class.append(numpy_generator("support", dataset, seed, label).permutation(members)[:shots])
    ranks = range(max(len(members) for members in by_class))
    drawn = [members[rank] for rank in ranks for members in by_class if rank < len(members)]
    return np.array(drawn, dtype=np.int64)


def batch_order(size: int, *, dataset: str, seed: int, epoch: int) -> Tensor:
    """The permutation (size,) in which an epoch visits the support's rows."""
    return torch.randperm(size, generator=torch_generator("order", dataset, seed, epoch, size))
