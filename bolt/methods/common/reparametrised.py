"""A tower whose weight matrices are the pre-trained ones plus a change that a few trained numbers determine.

A training step computes every changed matrix, runs the tower with it, and leaves the gradient to autograd. The frozen
tower itself is never written to.

Shape legend: (m, n) a weight matrix in open_clip's orientation, B batch, S image side, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION, tensor_names
from bolt.clip.tower import ImageTower
from bolt.training.trainable import Trainable


def reparametrised_tower(
    tower: ImageTower, parameters: Sequence[Tensor], changes: Callable[[], Mapping[str, Tensor]]
) -> Trainable:
    """The tower with ``W + change`` in place of some weight matrices W.

    Args:
        tower: the frozen tower.
        parameters: the leaf tensors to train.
        changes: the change (m, n) of each matrix by open_clip's name, differentiable in ``parameters``. It is computed
            without autocast: in bfloat16 a small change would be lost.
    """
    own, path = dict(tower.named_parameters()), tensor_names(tower.shape.layers)

    def weights() -> dict[str, Tensor]:
        with torch.autocast(tower.class_embedding.device.type, enabled=False):
            return {
                path[name]: own[path[name]] + (change.T if name == PROJECTION else change)
                for name, change in changes().items()
            }

    def encode(images_B3SS: Tensor) -> Tensor:
        features_BD: Tensor = torch.func.functional_call(tower, weights(), (images_B3SS,))
        return features_BD

    @torch.no_grad()
    def current() -> ImageTower:
        copy = tower.copy(trainable=changes()).requires_grad_(False)
        for name, weight in weights().items():
            copy.get_parameter(name).copy_(weight)
        return copy

    return Trainable(encode, parameters, current)
