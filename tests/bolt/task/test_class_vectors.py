"""Equal class vectors: which classes share one, and what accuracy that leaves possible."""

from __future__ import annotations

import torch

from bolt.task.class_vectors import classes_by_vector, highest_accuracy


def test_classes_with_equal_vectors_are_one_group() -> None:
    a, b, c = torch.eye(3)
    assert classes_by_vector(torch.stack([a, b, a, c, b + 1e-8]).numpy()) == [[0, 2], [1, 4], [3]]


def test_a_group_can_get_its_most_frequent_class_right_at_best() -> None:
    assert highest_accuracy([[0, 2], [1]], [10, 20, 30]) == 100 * 50 / 60
    assert highest_accuracy([[0, 1, 2, 3]], [5, 5, 5, 5]) == 25
    assert highest_accuracy([[0], [1]], [1, 9]) == 100
