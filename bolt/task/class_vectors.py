"""Classes whose words the text tower cannot tell apart: they have equal vectors in the zero-shot head.

Shape legend: C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

EQUAL = 1e-6
"""Largest difference of a coordinate between two equal unit vectors: rounding differs with the place in a batch."""


def classes_by_vector(head_CD: NDArray[np.float32]) -> list[list[int]]:
    """Group classes of equal vectors, in label order; a class with a unique vector is a group of one."""
    groups: list[list[int]] = []
    first_CD = np.empty_like(head_CD)  # the vector of each group's first class
    for label, vector_D in enumerate(head_CD):
        apart = np.abs(first_CD[: len(groups)] - vector_D).max(axis=1)
        equal = np.flatnonzero(apart <= EQUAL)
        if len(equal):
            groups[equal[0]].append(label)
        else:
            first_CD[len(groups)] = vector_D
            groups.append([label])
    return groups


def highest_accuracy(groups: Sequence[Sequence[int]], images_per_class: Sequence[int]) -> float:
    """Return the highest possible accuracy (per cent) of a classifier with equal logits within each group.

    At best it predicts the most frequent class for all images of a group.

    Args:
        groups: from :func:`classes_by_vector`.
        images_per_class: test images of each class.
    """
    right = sum(max(images_per_class[label] for label in group) for group in groups)
    return 100.0 * right / sum(images_per_class)
