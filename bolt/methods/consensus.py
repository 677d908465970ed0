"""Consensus merging: keeps the entries of the summed task vectors that several tasks use (Wang et al., ICML 2024).

Paper: "Localizing task information for improved model merging and compression", arXiv:2405.07813. M is the sum of the
sources' task vectors. Task t uses an entry if ``|tau_t| > lambda |M - tau_t|`` holds there: the task's change is large
compared with the change by all other tasks. An entry is kept if at least two tasks use it. The result is::

    theta_0 + alpha M on the kept entries

Nothing is trained. What differs from the official code:

- lambda is 0.4 for all tasks, the middle of the official grid. The official code chooses a lambda for each source on
  validation data of that source.
- alpha is chosen on the support, not on the sources' validation data.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bolt.methods.common.merging import MergingSettings, add_update, register_merging
from bolt.methods.task_arithmetic import sum_of_task_vectors
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task
from bolt.util.ranges import AtLeast0, NotNegative


@dataclass(frozen=True)
class ConsensusSettings(MergingSettings):
    """Which entries are kept, and the candidate scales.

    Attributes:
        mask_strength: lambda. With a larger lambda, a task uses fewer entries.
        tasks: the number of tasks that must use an entry for it to be kept.
    """

    mask_strength: NotNegative = 0.4
    tasks: AtLeast0 = 2
    alphas: tuple[float, ...] = tuple(step / 10 for step in range(1, 11))


def users(total: Mapping[str, Tensor], vectors: Iterable[Mapping[str, Tensor]], strength: float) -> dict[str, Tensor]:
    """Return name -> uint8 tensor: how many tasks use each entry. The task vectors are read one at a time."""
    counts = {name: torch.zeros_like(tensor, dtype=torch.uint8) for name, tensor in total.items()}
    for vector in vectors:
        for name, count in counts.items():
            own = vector[name].to(total[name])
            count += own.abs() > strength * (total[name] - own).abs()
    return counts


def consensus_update(task: Task, sources: Sources, settings: ConsensusSettings) -> dict[str, Tensor]:
    """Return the sum of the task vectors by tensor, with zeros in place of the entries that are not kept.

    Raises ``ValueError`` if a task vector is not finite.
    """
    total = sum_of_task_vectors(task, sources)
    counts = users(total, map(sources.task_vector, sources.names), settings.mask_strength)
    return {name: torch.where(counts[name] >= settings.tasks, tensor, 0) for name, tensor in total.items()}


@register_merging(
    title="Consensus",
    palette=45,
    summary="adds the entries of the summed task vectors that several tasks use",
    paper="https://arxiv.org/abs/2405.07813",
)
def adapt(task: Task, settings: ConsensusSettings) -> Adapted:
    """Add the sum of the task vectors on the kept entries, with the best scale."""
    return add_update(task, settings, consensus_update)
