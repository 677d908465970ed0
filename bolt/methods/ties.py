"""TIES: trims the sources' task vectors, elects a sign for every entry, and merges the values of that sign.

Paper: Yadav et al., NeurIPS 2023, arXiv:2306.01708. Each task vector is one vector over all tensors of the image tower.

1. Trim: all but the entries of largest magnitude are set to zero in each task vector. By default 20 per cent are kept.
2. Elect: the sign of an entry is the sign of the sum of the trimmed task vectors. Where this sum is zero, the entry
   gets the sign of the majority of all entries.
3. Merge: an entry becomes the mean (or the sum) of the trimmed values that have the elected sign.

The tower is ``theta_0 + alpha merged``; nothing is trained. Each task vector has one trimming threshold for all
tensors, so all entries of a tensor with small changes can become zero. What differs from the official code:

- The scale is chosen on the support, not on validation data of the sources' own tasks. The candidates are 0.1 to 2.5.
  The official candidates begin at 0.8. Here no source is a model of the target, so a smaller scale can be better.
  Without any data, the authors' scale is 1.
- ``keep_percent: 100`` keeps all entries. The official code fails with it.
- If equally many entries have either sign, an entry whose sum is zero becomes zero. The official code merges the
  negative values of such an entry.

Shape legend: M numbers of the whole tower.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from bolt.methods.common.merging import MergingSettings, add_update, register_merging
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task
from bolt.util.ranges import Range


@dataclass(frozen=True)
class TiesSettings(MergingSettings):
    """How the task vectors are trimmed and merged, and the candidate scales.

    Attributes:
        keep_percent: share of a task vector's entries that are kept, in per cent.
        merge: whether to take the ``mean`` or the ``sum`` of the values that have the elected sign.
    """

    keep_percent: Annotated[float, Range("in (0, 100]", lambda value: 0 < value <= 100)] = 20.0
    merge: Literal["mean", "sum"] = "mean"
    alphas: tuple[float, ...] = tuple(step / 10 for step in range(1, 26))


def trimming_threshold(vector_M: Tensor, keep_percent: float) -> float:
    """Return the smallest magnitude in a task vector (M,) that is kept.

    floor(M keep_percent / 100) of the M entries lie above this threshold. Entries at the threshold are kept too, as in
    the official code. So one entry more is kept, or several if magnitudes are equal.
    """
    below = len(vector_M) - int(len(vector_M) * keep_percent / 100)
    return float(vector_M.abs().kthvalue(below).values) if below else 0.0


def merge_task_vectors(
    read: Callable[[Any], Tensor], sources: Sequence[Any], keep_percent: float, merge: Literal["mean", "sum"]
) -> Tensor:
    """Return the merged task vector (M,), not scaled. Each source is read twice, and only one is in memory at a time.

    Args:
        read: ``read(source)`` -> the source's task vector (M,).
        sources: the names or the numbers of the sources.
    """
    thresholds: list[float] = []
    total_M = torch.zeros(())
    for source in sources:
        vector_M = read(source)
        thresholds.append(trimming_threshold(vector_M, keep_percent))
        total_M = total_M + torch.where(vector_M.abs() >= thresholds[-1], vector_M, 0)
    sign_M = total_M.sign()
    sign_M = torch.where(sign_M == 0, sign_M.sum().sign(), sign_M)
    merged_M, count_M = torch.zeros_like(total_M), torch.zeros_like(total_M, dtype=torch.int32)
    for source, threshold in zip(sources, thresholds, strict=True):
        vector_M = read(source)
        used_M = (vector_M.abs() >= threshold) & (vector_M * sign_M > 0)
        merged_M += torch.where(used_M, vector_M, 0)
        count_M += used_M
    return merged_M / count_M.clamp_min(1) if merge == "mean" else merged_M


def ties_update(task: Task, sources: Sources, settings: TiesSettings | None = None) -> dict[str, Tensor]:
    """Return the merged task vector by tensor. Raises ``ValueError`` if a source is not finite."""
    settings = settings or TiesSettings()
    state, device = task.backbone.tower.state_dict_open_clip(), task.backbone.device

    def read(source: str) -> Tensor:
        vector = sources.task_vector(source)
        vector_M = torch.cat([vector[name].to(device, torch.float32).flatten() for name in state])
        if not torch.isfinite(vector_M).all():
            raise ValueError(f"the task vector of {source} has NaN or infinite entries")
        return vector_M

    merged_M = merge_task_vectors(read, sources.names, settings.keep_percent, settings.merge)
    parts = torch.split(merged_M, [tensor.numel() for tensor in state.values()])
    return {name: part.view(state[name].shape) for name, part in zip(state, parts, strict=True)}


@register_merging(
    title="TIES",
    palette=36,
    summary="trims the sources' task vectors, elects signs, and merges the rest",
    paper="https://arxiv.org/abs/2306.01708",
)
def adapt(task: Task, settings: TiesSettings) -> Adapted:
    """Add the merged task vectors, with the best scale."""
    return add_update(task, settings, ties_update)
