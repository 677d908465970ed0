"""TSV-M: merges task vectors whose singular vectors are made orthogonal across tasks (Gargiulo et al., 2025).

Paper: arXiv:2412.00081. A weight matrix changes by the update of :func:`bolt.spectral.bases.tsv_merge`. Every other
tensor changes by the mean of the task vectors. One scale multiplies all changes; nothing is trained. What differs from
the official code:

- The scale is chosen on the support, not on validation data.
- The position embedding changes by the mean, because it is no linear map. The official code merges every
  two-dimensional tensor as a matrix.
"""

from torch import Tensor

from bolt.clip.tensor_names import matrix_names
from bolt.methods.common.merging import MergingSettings, add_update, mean_task_vectors, register_merging
from bolt.spectral.bases import tsv_merge
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task


def tsv_update(task: Task, sources: Sources, settings: object = None) -> dict[str, Tensor]:
    """Return the update of every tensor. Raises ``ValueError`` if a task vector is not finite."""
    width, state = task.backbone.tower.shape.width, task.backbone.tower.state_dict_open_clip()
    matrices = matrix_names(state)
    update = mean_task_vectors(sources, [name for name in state if name not in matrices])
    per_source = directions_of_each(None, width, len(sources.names))
    for name in matrices:
        m, n = state[name].shape
        update[name] = tsv_merge(sources.directions(name, per_source), (m, n))
    return update


def directions_of_each(settings: object, width: int, sources: int) -> int:
    """Return how many directions of each source are used in the largest matrices, whose min(m, n) is ``width``."""
    return max(1, width // sources)


@register_merging(
    title="TSV-M",
    palette=14,
    summary="merges the singular vectors of the sources' task vectors",
    paper="https://arxiv.org/abs/2412.00081",
    source_directions=directions_of_each,
)
def adapt(task: Task, settings: MergingSettings) -> Adapted:
    """Add the merged task vectors, with the best scale."""
    return add_update(task, settings, tsv_update)
