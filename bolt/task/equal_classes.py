"""Finds classes that the text tower cannot tell apart: their vectors in the zero-shot head are equal.

Shape legend: C classes, D embedding width.
"""

import numpy as np
from numpy.typing import NDArray

EQUAL = 1e-6
"""Two unit vectors count as equal if no coordinate differs by more than this. Equal prompts need not give equal bits,
because the rounding depends on a prompt's position in its batch."""


def equal_classes(head_CD: NDArray[np.float32]) -> list[list[int]]:
    """Return the groups of classes with equal vectors, in label order. A class with a unique vector is in no group."""
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
    return [group for group in groups if len(group) > 1]
