"""KnOTS: merges task vectors by TIES in a basis that all tasks share (Stoica et al., ICLR 2025).

Paper: arXiv:2410.19735. For each weight matrix, the task vectors of the T sources are put side by side, (m, T n). Their
left singular vectors U are the shared basis, and ``B_t = U^T tau_t`` are the coefficients of task t. TIES merges the
coefficients of all matrices, with one threshold for each task, and the matrix changes by ``U merged``. With a plain sum
in place of TIES, this would be task arithmetic. Tensors that are not matrices change by the mean of the task vectors.
What differs from the official code:

- The scale is chosen on the support. The official code searches the scale, with the result 0.6 for ViT-B/32.
- U is computed from the products ``sum_t tau_t tau_t^T`` in float64, not by a singular value decomposition.

The method was made for LoRA's updates, whose rank is small. For fully fine-tuned towers U spans the whole space.

Shape legend: m, n rows and columns of a matrix, r columns of U, T sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.clip.tensor_names import matrix_names
from bolt.methods.common.merging import MergingSettings, add_update, mean_task_vectors, register_merging
from bolt.methods.ties import TiesSettings, merge_task_vectors
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task

_SMALLEST = 1e-5
"""Singular values below this count as zero."""


@dataclass(frozen=True)
class KnotsSettings(TiesSettings):
    """The settings of TIES, which merges the coefficients of the task vectors."""

    alphas: tuple[float, ...] = MergingSettings.alphas


def shared_basis(vectors: Sequence[Tensor]) -> Tensor:
    """Return the left singular vectors U (m, r) of one matrix's task vectors (m, n) side by side, in float64."""
    products_mm = torch.stack([vector.double() @ vector.double().T for vector in vectors]).sum(dim=0)
    squares_m, basis_mm = torch.linalg.eigh(products_mm)
    kept: Tensor = basis_mm[:, squares_m.clamp_min(0).sqrt() > _SMALLEST]
    return kept


def merge_matrices(vectors: Mapping[str, Sequence[Tensor]], settings: TiesSettings) -> dict[str, Tensor]:
    """Return the update of every matrix.

    ``vectors``: name of a matrix -> its task vectors, in the same order of the sources for all matrices.
    """
    bases = {name: shared_basis(of_tasks) for name, of_tasks in vectors.items()}
    tasks = range(len(next(iter(vectors.values()))))

    def coefficients(task: int) -> Tensor:
        return torch.cat([(basis.T @ vectors[name][task].double()).flatten() for name, basis in bases.items()])

    merged = merge_task_vectors(coefficients, tasks, settings.keep_percent, settings.merge)
    shapes = {name: (basis.shape[1], vectors[name][0].shape[1]) for name, basis in bases.items()}
    pieces = torch.split(merged, [rank * columns for rank, columns in shapes.values()])
    return {name: (bases[name] @ piece.view(shapes[name])).float() for name, piece in zip(bases, pieces, strict=True)}


def knots_update(task: Task, sources: Sources, settings: KnotsSettings) -> dict[str, Tensor]:
    """Return the update of every tensor. Raises ``ValueError`` if a task vector is not finite."""
    state = task.backbone.tower.state_dict_open_clip()
    update = mean_task_vectors(sources, state)  # raises if a source is not finite
    vectors = [sources.task_vector(source) for source in sources.names]
    matrices = {name: [vector[name].to(task.backbone.device) for vector in vectors] for name in matrix_names(state)}
    return update | merge_matrices(matrices, settings)


@register_merging(
    title="KnOTS",
    palette=46,
    summary="merges the sources' task vectors by TIES in a basis that they share",
    paper="https://arxiv.org/abs/2410.19735",
)
def adapt(task: Task, settings: KnotsSettings) -> Adapted:
    """Add the task vectors that TIES merges in a shared basis, with the best scale."""
    return add_update(task, settings, knots_update)
