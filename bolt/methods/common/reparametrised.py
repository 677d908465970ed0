"""A tower whose weight matrices are the pre-trained ones plus a change that a few trained numbers determine.

A training step computes every changed matrix, runs the tower with it, and leaves the gradient to autograd. The frozen
tower itself is never written to.

Shape legend: (m, n) a weight matrix (out, in), B batch, S image side, D joint embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, matrix_names, tensor_names
from bolt.clip.tower import ImageTower
from bolt.training.trainable import Trainable


def weight_matrices(tower: ImageTower, kinds: Collection[str] = tuple(MATRIX_KINDS)) -> dict[str, Tensor]:
    """The tower's weight matrices (m, n) of some kinds by open_clip's name, detached but not copied.

    Each is (out, in), as the tower's linear modules hold it; open_clip itself stores ``proj`` transposed.
    """
    path = tensor_names(tower.shape.layers)
    names = matrix_names(tower.state_dict_open_clip(), kinds)
    return {name: tower.get_parameter(path[name]).detach() for name in names}


def reparametrised_tower(
    tower: ImageTower, parameters: Sequence[Tensor], changes: Callable[[], Mapping[str, Tensor]]
) -> Trainable:
    """The tower with ``W + change`` in place of some weight matrices W.

    Args:
        tower: the frozen tower.
        parameters: the leaf tensors to train.
        changes: the change (m, n) of each matrix by open_clip's name, differentiable in ``parameters``; oriented as in
            :func:`weight_matrices`. It is computed without autocast: in bfloat16 a small change would be lost.
    """
    own, path = dict(tower.named_parameters()), tensor_names(tower.shape.layers)

    def weights() -> dict[str, Tensor]:
        with torch.autocast(tower.class_embedding.device.type, enabled=False):
            return {path[name]: own[path[name]] + change for name, change in changes().items()}

    def encode(images_B3SS: Tensor) -> Tensor:
        features_BD: Tensor = torch.func.functional_call(tower, weights(), (images_B3SS,))
        return features_BD

    @torch.no_grad()
    def current() -> ImageTower:
        copy = tower.copy(trainable=changes()).requires_grad_(False)
        for name, weight in weights().items():
            copy.get_parameter(name).copy_(weight)
        return copy

    return Trainable(encode, parameters, current, capturable=True)
