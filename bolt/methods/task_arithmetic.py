"""Task arithmetic: the pre-trained tower plus a scaled sum of the sources' task vectors (Ilharco et al., 2023).

Paper: arXiv:2212.04089. ``theta_0 + alpha sum_t tau_t`` over every tensor of the image tower. Nothing is trained. What
differs from the official code:

- alpha is chosen on the support, not on a validation split.
- The official grid of alpha is 0 to 1 in steps of 0.05. Here 0 is left out, because it gives the zero-shot tower. A
  method that can return the zero-shot tower does not show what merging does. The best alpha for 16 task vectors is near
  the lower end of the grid.
"""

from dataclasses import dataclass

from torch import Tensor

from bolt.methods.common.merging import MergingSettings, add_update, mean_task_vectors, register_merging
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task


@dataclass(frozen=True)
class TaskArithmeticSettings(MergingSettings):
    """The candidate scales of the sum."""

    alphas: tuple[float, ...] = tuple(step / 20 for step in range(1, 21))


def sum_of_task_vectors(task: Task, sources: Sources, settings: object = None) -> dict[str, Tensor]:
    """Return the sum of the sources' task vectors by tensor. Raises ``ValueError`` if a task vector is not finite."""
    mean = mean_task_vectors(sources, task.backbone.tower.state_dict_open_clip())
    return {name: tensor * len(sources.names) for name, tensor in mean.items()}


@register_merging(
    title="Task arithmetic",
    palette=13,
    summary="adds the mean of the sources' task vectors to the tower",
    paper="https://arxiv.org/abs/2212.04089",
)
def adapt(task: Task, settings: TaskArithmeticSettings) -> Adapted:
    """Add the sum of the task vectors, with the best scale."""
    return add_update(task, settings, sum_of_task_vectors)
