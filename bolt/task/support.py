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
    draw: Literal["nested", "fresh"] = "nested",
    pool: Literal["train", "less_validation"] = "train",
) -> NDArray[np.int64]:
    """Positions, in ``labels``, of ``shots`` images of every class.

    Rank-major: every class's first image in class order, then every class's second, and so on, so that fewer shots
    are a prefix of more. Each class is permuted by its own generator, so its images do not depend on other classes.
    With ``class_count`` the classes are 0 ... class_count - 1, of which none may be without an image; without it they
    are those that occur.

    ``draw="fresh"`` and ``pool="less_validation"`` are the published way: one generator, seeded by ``seed`` alone, runs
    through the classes in order, so that a draw of fewer shots holds other images; and the images of
    :func:`validation_tenth` are not drawn from.

    Raises ``TooFewImages`` for a class that has none, or fewer than ``shots`` unless ``short_classes`` is
    ``take_all``.
    """
    if shots < 1:
        raise ValueError(f"a support has at least one image per class, not {shots}")
    labels_N = np.asarray(labels)
    classes = np.unique(labels_N) if class_count is None else np.arange(class_count)
    drawable = np.ones(len(labels_N), dtype=bool)
    if pool == "less_validation":
        drawable[validation_tenth(len(labels_N))] = False
    one_for_all = np.random.RandomState(seed)  # the authors' ``np.random.seed(seed)``, as a generator of its own
    by_class = []
    for label in classes.tolist():
        members = np.flatnonzero((labels_N == label) & drawable)
        if len(members) < (shots if short_classes == "refuse" else 1):
            raise TooFewImages(
                f"class {label} of {dataset} has {len(members)} training images, fewer than {shots} shots"
            )
        if draw == "nested":
            by_class.append(numpy_generator("support", dataset, seed, label).permutation(members)[:shots])
        else:
            by_class.append(one_for_all.choice(members, shots, replace=False) if len(members) > shots else members)
    ranks = range(max(len(members) for members in by_class))
    drawn = [members[rank] for rank in ranks for members in by_class if rank < len(members)]
    return np.array(drawn, dtype=np.int64)


def validation_tenth(size: int) -> NDArray[np.int64]:
    """Positions of the images that the task-vector repositories set aside of a training split of ``size``.

    A tenth, at most 5,000, the same for everyone: the tail of ``torch.randperm`` seeded by 0, as their ``random_split``
    takes it. With it, of MNIST's 60,000 the first image left for training is 36,044, as in theirs.
    """
    held_out = min(size // 10, 5000)
    order = torch.randperm(size, generator=torch.Generator().manual_seed(0))
    return order[size - held_out :].numpy()


def batch_order(size: int, *, dataset: str, seed: int, epoch: int) -> Tensor:
    """The permutation (size,) in which an epoch visits the support's rows."""
    return torch.randperm(size, generator=torch_generator("order", dataset, seed, epoch, size))
