"""Finds classes that the text tower cannot tell apart: their vectors in the zero-shot head are equal.

Shape legend: C classes, D embedding width.
"""

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

EQUAL = 1e-6
"""Two unit vectors count as equal if no coordinate differs by more than this. Equal prompts need not give equal bits,
because the rounding depends on a prompt's position in its batch."""


def equal_classes(head_CD: NDArray[np.float32]) -> list[list[int]]:
    """Return the groups of classes with equal vectors, in label order. A class with a unique vector is in no group."""
    groups: dict[int, list[int]] = defaultdict(list)  # the first class of a group -> the group
    for label, vector_D in enumerate(head_CD):
        equal = np.abs(head_CD[:label] - vector_D).max(axis=1) <= EQUAL
        groups[int(np.append(equal, True).argmax())].append(label)
    return [group for group in groups.values() if len(group) > 1]
