"""Finds the tensors in which an adapted tower differs from the frozen one, and puts such tensors into a tower."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bolt.clip.tensor_names import DEEP_PROMPTS, PROJECTION, check_tensors
from bolt.clip.tower import ImageTower


def changed_tensors(tower: ImageTower, frozen: ImageTower) -> dict[str, Tensor]:
    """Return the tensors in which a tower differs from the frozen tower, in open_clip's names and orientation.

    Tensors that share memory are not compared, so the function is fast if few tensors were trained.
    """
    own, before = dict(tower.named_parameters()), dict(frozen.named_parameters())
    changed = [
        name
        for name, path in tower.tensor_paths().items()
        if path not in before
        or (own[path].data_ptr() != before[path].data_ptr() and not torch.equal(own[path], before[path]))
    ]
    state = tower.state_dict_open_clip()
    return {name: state[name] for name in changed}


def replace_tensors(frozen: ImageTower, tensors: Mapping[str, Tensor]) -> ImageTower:
    """Return a copy of a frozen tower in which ``tensors``, by open_clip's names, replace the tower's own.

    The copy shares all other tensors. Deep prompts can be among the new tensors.

    Raises ``bolt.clip.tensor_names.TensorMismatch`` if tensors do not fit.
    """
    if DEEP_PROMPTS in tensors:
        frozen = frozen.with_prompts(tensors[DEEP_PROMPTS])
    state = frozen.state_dict_open_clip()
    check_tensors({**state, **tensors}, {name: tuple(tensor.shape) for name, tensor in state.items()})
    clone = frozen.copy(tensors).requires_grad_(False)
    own, names = dict(clone.named_parameters()), frozen.tensor_paths()
    for name, tensor in tensors.items():
        own[names[name]].copy_(tensor.T if name == PROJECTION else tensor)
    return clone
