"""TSV-M: task singular vectors, orthogonalised across tasks and merged (Gargiulo et al., 2025).

A weight matrix moves by the update of :func:`bolt.spectral.bases.tsv_merge`, every other tensor by the mean of the task
vectors; one scale multiplies both. Nothing is trained. The official code chooses the scale on validation data, here
it is chosen on the support; and it merges every two-dimensional tensor as a matrix, the position embedding too, whose
rows are no basis of anything: here that one moves by the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

from bolt.clip.tensor_names import matrix_names
from bolt.methods.base import Method, TowerPasses, register
from bolt.methods.common.merging import adapt_by_merging, mean_task_vectors, required_sources
from bolt.methods.common.scale_selection import images_scored
from bolt.spectral.bases import tsv_merge
from bolt.task.task import Adapted, Task


@dataclass(frozen=True)
class TsvMergeSettings:
    """Attributes:
    alphas: candidate scales; the most accurate on the support is used, the smallest if several are. The default is
        the official grid, 0.1 to 3 in steps of 0.1.
    """

    alphas: tuple[float, ...] = tuple(step / 10 for step in range(1, 31))

    def __post_init__(self) -> None:
        if not self.alphas:
            raise ValueError("alphas names at least one candidate")


def adapt(task: Task, settings: TsvMergeSettings) -> Adapted:
    """Merge the sources and choose the scale. Raises ``ValueError`` for task vectors that are not finite."""
    sources, width = required_sources(task), task.backbone.tower.shape.width
    state = task.backbone.tower.state_dict_open_clip()
    matrices = matrix_names(state)
    update = mean_task_vectors(sources, [name for name in state if name not in matrices])
    per_source = _directions(settings, width, len(sources.names))
    for name in matrices:
        m, n = state[name].shape
        update[name] = tsv_merge(sources.directions(name, per_source), (m, n))
    return adapt_by_merging(task, update, settings.alphas)


def _directions(settings: TsvMergeSettings, width: int, sources: int) -> int:
    """Directions per source of the largest matrices: no matrix of a tower has min(m, n) above its width."""
    return max(1, width // sources)


register(
    Method(
        name="tsv_merge",
        title="TSV-M",
        paper="https://arxiv.org/abs/2412.00081",
        settings_class=TsvMergeSettings,
        adapt=adapt,
        tracks=frozenset({"fewshot", "ood"}),
        uses_sources=True,
        source_directions=_directions,
        uses_mean_task_vector=True,
        changes_tower=True,
        tower_passes=lambda support_size, settings: TowerPasses(forward=images_scored(settings.alphas, support_size)),
        test_settings={"alphas": (0.3, 1.0)},
    )
)
