"""Classes with equal text vectors."""

import torch

from bolt.task.equal_classes import equal_classes


def test_classes_with_equal_vectors_are_one_group() -> None:
    a, b, c = torch.eye(3)
    assert equal_classes(torch.stack([a, b, a, c, b + 1e-8]).numpy()) == [[0, 2], [1, 4]]
