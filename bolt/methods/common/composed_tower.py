"""An image tower whose tensors are composed of the sources' task vectors, with trained coefficients.

Shape legend: N sources, M numbers of a tensor, B batch, S image side, D embedding width.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION
from bolt.clip.tower import ImageTower
from bolt.methods.common.composition import Composition
from bolt.spectral.sources import Sources
from bolt.training.adaptation import Trainable


def stack_task_vectors(
    tower: ImageTower, sources: Sources, names: Iterable[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Stack all sources' task vectors of the named tensors: name -> (N, M) in ``dtype``, on the tower's device.

    The entries are in the order of the tower's own tensors, where ``proj`` is the transpose of open_clip's. Besides the
    stacks, only one source's task vector is in memory at a time.

    Raises:
        ValueError: if a source's tensor is missing, has another shape, is not finite, or does not fit into ``dtype``.
    """
    own = tensors_by_open_clip_name(tower, names)
    stacks = {
        name: torch.empty(len(sources.names), tensor.numel(), dtype=dtype, device=tensor.device)
        for name, tensor in own.items()
    }
    for row, source in enumerate(sources.names):
        vector = sources.task_vector(source)
        for name, stack_NM in stacks.items():
            stored = own[name].shape[::-1] if name == PROJECTION else own[name].shape
            if name not in vector or vector[name].shape != stored:
                raise ValueError(f"the task vector of {source} has no tensor {name} of the shape {tuple(stored)}")
            value = vector[name].T if name == PROJECTION else vector[name]
            stack_NM[row].copy_(value.reshape(-1))
            if not torch.isfinite(stack_NM[row]).all():
                raise ValueError(f"the task vector of {source} is NaN, infinite or beyond {dtype} in {name}")
        del vector  # without this, the vector would stay in memory while the next one is read
    return stacks


def tensors_by_open_clip_name(tower: ImageTower, names: Iterable[str]) -> dict[str, Tensor]:
    """Return the tower's tensors that have these open_clip names, by name. The tensors are not copied.

    ``proj`` is in the tower's orientation, which is the transpose of open_clip's.
    """
    own, path = dict(tower.named_parameters()), tower.tensor_paths()
    return {name: own[path[name]].detach() for name in names}


def trainable_composition(tower: ImageTower, composition: Composition) -> Trainable:
    """Return the tower for training: the tensors of ``composition`` take the place of the tower's own ones.

    ``composition`` names its tensors as open_clip does.
    """
    path = tower.tensor_paths()

    def encode(images_B3SS: Tensor) -> Tensor:
        tensors = {path[name]: tensor for name, tensor in composition.tensors().items()}
        features_BD: Tensor = torch.func.functional_call(tower, tensors, (images_B3SS,))
        return features_BD

    return Trainable(
        encode, [composition.coefficients], current=lambda: tower.replaced(composition.tensors(recompute=True))
    )
