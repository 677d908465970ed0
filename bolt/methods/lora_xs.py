"""LoRA-XS: trains a small core between frozen singular directions of the weights (Balazy et al., arXiv:2405.17604).

U_r, S_r and V_r are the leading r singular triplets of a weight matrix W, which becomes ``W + alpha / r U_r R S_r
V_r^T``. Only R (r, r) is trained. If all matrices are changed, ViT-B has 49 r^2 trained parameters and ViT-L/14 has 97
r^2: 12,544 and 24,832 at r = 16. The text head stays frozen. BOLT uses the sources' directions instead, and its R is
diagonal.

The defaults are fixed, so they are not tuned with labels: r = alpha = 16, all matrices, and a rate of 4e-3 without
weight decay. The authors use this rate and no weight decay in their runs with alpha = r. For GLUE they search the rate
on the development set. What differs:

- R starts at zero. The authors draw R from N(0, 1e-5^2), which ``init_std: 1e-5`` does.
- The singular directions are exact. The authors compute them by a randomised method. To merge a trained R into the
  weights, they compute the directions again, with fewer iterations.
- Directions whose singular value is numerically zero are left out. So R is smaller than (r, r) if W has a rank below r.

S_r is between R and V_r^T. So the effect of a column of R is proportional to the singular value of that column.

Shape legend: (m, n) a weight matrix (out, in), r rank.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, MatrixKinds
from bolt.methods.base import register_tower_training
from bolt.methods.common.reparametrised import MatrixChange, train_changes, weight_matrices
from bolt.seeds import torch_generator
from bolt.spectral.directions import top_directions
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe
from bolt.util.ranges import AtLeast1, NotNegative, Positive


@dataclass(frozen=True)
class LoraXsSettings(TrainingRecipe):
    """The training recipe, and the size of the cores.

    Attributes:
        rank: number of leading singular directions of each matrix, r.
        alpha: the change is multiplied by alpha / r.
        init_std: standard deviation of R's entries at the start; the authors use 1e-5.
        matrices: the kinds of weight matrices that are changed.
    """

    learning_rate: float = 4e-3
    rank: AtLeast1 = 16
    alpha: Positive = 16.0
    init_std: NotNegative = 0.0
    matrices: MatrixKinds = tuple(MATRIX_KINDS)


def singular_core(weight: Tensor, rank: int, alpha: float) -> MatrixChange:
    """Return the change ``(alpha / r U) R (S V^T)`` of a weight matrix (m, n). R is trained, and starts at zero.

    Raises ``ValueError`` if the weight is not finite.
    """
    top = top_directions(weight, min(rank, *weight.shape))
    left, right = alpha / rank * top.u, top.s[:, None] * top.v.mT
    core = torch.zeros(len(top.s), len(top.s), dtype=weight.dtype, device=weight.device, requires_grad=True)
    return MatrixChange(lambda: left @ core @ right, [core])


@register_tower_training(
    title="LoRA-XS",
    palette=32,
    summary="trains a small core between the singular directions of each weight",
    paper="https://arxiv.org/abs/2405.17604",
    training_forwards=2.8,
)
def adapt(task: Task, settings: LoraXsSettings) -> Adapted:
    """Decompose the matrices, and train the cores on the support."""
    weights = weight_matrices(task.backbone.tower, settings.matrices)
    cores = {name: singular_core(weight, settings.rank, settings.alpha) for name, weight in weights.items()}
    for name, core in cores.items():
        (r,) = core.trained
        generator = torch_generator("lora_xs", task.dataset, task.seed, name)
        r.data.add_((settings.init_std * torch.randn(r.shape, generator=generator)).to(r))
    return train_changes(task, settings, cores)
