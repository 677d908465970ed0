"""SVF: trains the singular values of the pre-trained weight matrices (Sun et al., NeurIPS 2022, arXiv:2206.06122).

A weight matrix W = U diag(sigma) V^T becomes ``U diag(max(sigma + delta, 0)) V^T``. U, V and sigma stay frozen; the
shifts delta start at zero and are trained. That is the form of SVDiff (Han et al., ICCV 2023, arXiv:2303.11305). It has
one number per singular value: 37,376 in ViT-B, 99,072 in ViT-L/14. The text head stays frozen. The defaults are those
of SVDiff: AdamW with learning rate 1e-3 and a weight decay of 1e-2, which pulls delta to zero, and clipped gradients.
What differs from the two official codes:

- SVF trains the singular values themselves, which may turn negative. ``singular_values: free`` allows that here. The
  official code of SVF gives linear layers random weights, so its transformers are no reference for this method.
- SVDiff also shifts every one-dimensional tensor by one number, at a rate of 1e-6. Those tensors stay frozen here.
- The rate follows the default schedule here, a warm-up and a cosine. SVDiff's rate is constant; ``schedule: constant``
  with ``warmup_fraction: 0`` gives such a rate.

A shift is absolute, so the same step changes a small singular value by a larger share than a large one. ``lora_xs``
trains relative changes, in the leading directions only.

Shape legend: (m, n) a weight matrix (out, in), r = min(m, n) singular values.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, MatrixKinds
from bolt.methods.base import register_tower_training
from bolt.methods.common.reparametrised import MatrixChange, train_changes, weight_matrices
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe


@dataclass(frozen=True)
class SvfSettings(TrainingRecipe):
    """The training recipe, and which singular values are trained.

    Attributes:
        singular_values: ``non_negative`` cuts shifted singular values off at zero, where they get no gradient
            (SVDiff); ``free`` lets them turn negative (SVF).
        matrices: the kinds of weight matrices whose singular values are trained.
    """

    weight_decay: float = 1e-2
    singular_values: Literal["non_negative", "free"] = "non_negative"
    matrices: MatrixKinds = tuple(MATRIX_KINDS)


def shifted_matrix(weight: Tensor, free: bool = False) -> MatrixChange:
    """Return the change of a weight matrix (m, n) by trained shifts (r,) of its singular values, which start at zero.

    The decomposition is computed in float64. If ``free``, a shifted singular value may turn negative.
    """
    u, s, vh = (part.to(weight) for part in torch.linalg.svd(weight.double(), full_matrices=False))
    delta = torch.zeros_like(s).requires_grad_()

    def change() -> Tensor:
        shift = delta if free else (s + delta).relu() - s
        return torch.matmul(u * shift, vh)

    return MatrixChange(change, [delta])


@register_tower_training(
    title="SVF",
    palette=30,
    summary="trains the singular values of the tower's weights",
    paper="https://arxiv.org/abs/2206.06122",
    training_forwards=4.0,
)
def adapt(task: Task, settings: SvfSettings) -> Adapted:
    """Decompose the matrices, and train the shifts on the support."""
    weights, free = weight_matrices(task.backbone.tower, settings.matrices), settings.singular_values == "free"
    matrices = {name: shifted_matrix(weight, free) for name, weight in weights.items()}
    return train_changes(task, settings, matrices)
