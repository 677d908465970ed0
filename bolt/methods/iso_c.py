"""Iso-C: merges task vectors and makes every direction of a merged matrix equally strong (Marczak et al., ICML 2025).

Paper: arXiv:2502.04959. The task vectors of a weight matrix are added up, ``M = sum_t tau_t = U diag(sigma) V^T``, and
the update is ``mean(sigma) U V^T``. Every other tensor changes by the mean of the task vectors. One scale multiplies
all changes; nothing is trained. As M is a sum, the update of a matrix grows with the number of sources. What differs
from the official code:

- The scale is chosen on the support, not on validation data. The candidates are the official 0.1 to 3.
- The position embedding changes by the mean, because it is no linear map. The official code merges every
  two-dimensional tensor as a matrix.
- Singular values of zero stay zero. The official code also sets these to the mean, in arbitrary directions.

Shape legend: (m, n) a weight matrix.
"""

from torch import Tensor

from bolt.clip.tensor_names import matrix_names
from bolt.methods.common.merging import MergingSettings, add_update, mean_task_vectors, register_merging
from bolt.spectral.directions import top_directions
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task


def isotropic(matrix: Tensor) -> Tensor:
    """Return a matrix (m, n) with all its singular values replaced by their mean.

    The mean is taken over all min(m, n) singular values. Singular values that are numerically zero stay zero.
    """
    rank = min(matrix.shape)
    directions = top_directions(matrix, rank)
    return directions.s.sum() / rank * directions.u @ directions.v.mT


def iso_c_update(task: Task, sources: Sources, settings: object = None) -> dict[str, Tensor]:
    """Return the update of every tensor. Raises ``ValueError`` if a task vector is not finite."""
    state = task.backbone.tower.state_dict_open_clip()
    update = mean_task_vectors(sources, state)
    for name in matrix_names(state):
        update[name] = isotropic(update[name].to(task.backbone.device) * len(sources.names))
    return update


@register_merging(
    title="Iso-C",
    palette=37,
    summary="merges the sources' task vectors and equalises their singular values",
    paper="https://arxiv.org/abs/2502.04959",
)
def adapt(task: Task, settings: MergingSettings) -> Adapted:
    """Add the merged task vectors, whose matrices have equal singular values, with the best scale."""
    return add_update(task, settings, iso_c_update)
