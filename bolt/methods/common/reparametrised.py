"""Trainable changes of a tower's pre-trained weight matrices, each computed from a few trainable parameters.

A training step computes every changed matrix and runs the tower with these matrices. Autograd computes the gradient.
The frozen tower itself is never written to.

Shape legend: (m, n) a weight matrix (out, in), B batch, S image side, D joint embedding width.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, matrix_names
from bolt.clip.tower import ImageTower
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import Trainable, train
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class MatrixChange:
    """The change of a weight matrix.

    Attributes:
        change: ``change()`` -> the change (m, n), oriented as in :func:`weight_matrices`.
        trained: the tensors from which the change is computed and which are trained.
    """

    change: Callable[[], Tensor]
    trained: Sequence[Tensor]


def weight_matrices(tower: ImageTower, kinds: Collection[str] = tuple(MATRIX_KINDS)) -> dict[str, Tensor]:
    """Return the tower's weight matrices (m, n) of the given kinds, by open_clip's name; detached, not copied.

    Each matrix is (out, in), as in the tower's linear modules; open_clip itself stores ``proj`` transposed.
    """
    own = tower.own_tensors()
    return {name: own[name] for name in matrix_names(own, kinds)}


def train_changes(task: Task, recipe: TrainingRecipe, changes: Mapping[str, MatrixChange]) -> Adapted:
    """Train the tower on the support: each weight matrix W in ``changes`` becomes ``W + change``, all else is frozen.

    The keys of ``changes`` are open_clip's names. The sums are computed without autocast, because bfloat16 would lose a
    small change.
    """
    tower = task.backbone.tower
    own = tower.own_tensors()

    def weights() -> dict[str, Tensor]:
        with torch.autocast(task.backbone.device.type, enabled=False):
            return {name: own[name] + matrix.change() for name, matrix in changes.items()}

    @torch.no_grad()
    def current() -> ImageTower:
        return tower.replaced(weights())

    trained = [tensor for matrix in changes.values() for tensor in matrix.trained]
    trainable = Trainable(lambda images_B3SS: tower.embed_with(weights(), images_B3SS), trained, current)
    return replace(train(task, trainable, recipe), details={"matrices": len(changes)})
