"""VeRA: trains two scaling vectors per weight matrix around shared random matrices (Kopiczko et al., ICLR 2024).

Paper: arXiv:2310.11454. A weight matrix becomes ``W + diag(b) B diag(d) A``. A (r, largest n) and B (largest m, r) are
drawn once, stay frozen and are shared by all matrices; a smaller matrix uses their first columns and rows. Only d (r),
which starts at 0.1, and b (m), which starts at zero, are trained: 83,456 + 49 r parameters in ViT-B, 221,952 + 97 r in
ViT-L/14. The text head and the biases stay frozen.

A and B are drawn as in ``peft``: uniform in +-sqrt(6 / columns), from a generator on the CPU with seed
``projection_prng_key``. No default was tuned with labels: the rank of 256 is the paper's, there is no weight decay, and
the rate of 4e-3 is near those that the authors tuned per dataset for their vision transformers. What differs:

- All weight matrices change. The paper's vision transformers change query and value only.
- The fused query-key-value matrix is one matrix with one b and one d.

Shape legend: (m, n) a weight matrix (out, in), r rank.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from bolt.clip.tensor_names import MATRIX_KINDS, MatrixKinds
from bolt.methods.base import register_tower_training
from bolt.methods.common.reparametrised import MatrixChange, train_changes, weight_matrices
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe
from bolt.util.ranges import AtLeast1, Range


@dataclass(frozen=True)
class VeraSettings(TrainingRecipe):
    """The training recipe, and the random matrices.

    Attributes:
        rank: the inner width of the random matrices, r.
        d_initial: start of the entries of d. It must not be zero, because at d = 0 no gradient reaches b.
        projection_prng_key: seed of the random matrices.
        matrices: the kinds of weight matrices that are changed.
    """

    learning_rate: float = 4e-3
    rank: AtLeast1 = 256
    d_initial: Annotated[float, Range("another number than 0", bool)] = 0.1
    projection_prng_key: int = 0
    matrices: MatrixKinds = tuple(MATRIX_KINDS)


def random_projections(shapes: Collection[torch.Size], rank: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return A (r, largest n) and B (largest m, r) for matrices of the given shapes, float32 on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def draw(rows: int, columns: int) -> Tensor:
        bound = math.sqrt(6 / columns)
        return torch.empty(rows, columns).uniform_(-bound, bound, generator=generator)

    a = draw(rank, max(n for _, n in shapes))
    return a, draw(max(m for m, _ in shapes), rank)


def scaled_projection(weight: Tensor, a: Tensor, b: Tensor, d_initial: float) -> MatrixChange:
    """Return the change ``diag(scale_b) b diag(scale_d) a`` of a weight matrix (m, n). It is zero before training.

    Args:
        a, b: the random matrices, of which the first n columns and the first m rows are used. The scales are trained.
    """
    m, n = weight.shape
    own_a, own_b = a[:, :n].to(weight), b[:m].to(weight)
    scale_d = torch.full((len(a),), d_initial, dtype=weight.dtype, device=weight.device, requires_grad=True)
    scale_b = torch.zeros(m, dtype=weight.dtype, device=weight.device, requires_grad=True)
    return MatrixChange(lambda: (scale_b[:, None] * own_b * scale_d) @ own_a, [scale_d, scale_b])


@register_tower_training(
    title="VeRA",
    palette=33,
    summary="trains scaling vectors around shared random matrices",
    paper="https://arxiv.org/abs/2310.11454",
    training_forwards=3.2,
)
def adapt(task: Task, settings: VeraSettings) -> Adapted:
    """Draw the random matrices, and train the scaling vectors on the support."""
    weights = weight_matrices(task.backbone.tower, settings.matrices)
    shapes = [weight.shape for weight in weights.values()]
    a, b = random_projections(shapes, settings.rank, settings.projection_prng_key)
    layers = {name: scaled_projection(weight, a, b, settings.d_initial) for name, weight in weights.items()}
    return train_changes(task, settings, layers)
