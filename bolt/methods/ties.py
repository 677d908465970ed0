"""TIES: trims the sources' task vectors, elects a sign for every entry, and merges the values with that sign.

Paper: Yadav et al., NeurIPS 2023, arXiv:2306.01708. Each task vector is one vector over all tensors of the image tower.

1. Trim: of each task vector only the entries of largest magnitude stay, 20 per cent by default.
2. Elect: the sign of an entry is the sign of the sum of the trimmed task vectors. Where the sum is zero, it is the sign
   of the majority of all entries.
3. Merge: of each entry, the mean (or the sum) of the trimmed values that are not zero and have the elected sign.

The tower is ``theta_0 + alpha merged``; nothing is trained. The trimming threshold is one number for all tensors, so
tensors with small changes can vanish from a task vector. What differs from the official code:

- The scale is chosen on the support, not on validation data of the sources' own tasks. The candidates are 0.1 to 2.5,
  where the official ones begin at 0.8: a task that is none of the sources' can want less. The authors' value without
  any data is 1.
- ``keep_percent: 100`` keeps everything, where the official code fails.
- If all sums of signs cancel out, the merged entries are zero. The official code takes negative values there.

Shape legend: M numbers of the whole tower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor

from bolt.methods.common.merging import MergingSettings, adapt_by_merging, register_merging
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task
from bolt.util.ranges import Range


@dataclass(frozen=True)
class TiesSettings(MergingSettings):
    """How the task vectors are trimmed and merged, and the candidate scales.

    Attributes:
        keep_percent: how many per cent of the entries of a task vector are kept.
        merge: the ``mean`` of the values that agree with the elected sign, or their ``sum``.
    """

    keep_percent: Annotated[float, Range("in (0, 100]", lambda value: 0 < value <= 100)] = 20.0
    merge: Literal["mean", "sum"] = "mean"
    alphas: tuple[float, ...] = tuple(step / 10 for step in range(1, 26))


def trimming_threshold(vector_M: Tensor, keep_percent: float) -> float:
    """Return the smallest magnitude in a task vector (M,) that is kept.

    Of M entries, floor(M keep_percent / 100) lie above it. Entries that equal it are kept too, as in the official code:
    one entry more than the share, or several if magnitudes are equal.
    """
    below = len(vector_M) - int(len(vector_M) * keep_percent / 100)
    return float(vector_M.abs().kthvalue(below).values) if below else 0.0


def merge_task_vectors(
    read: Callable[[str], Tensor], sources: Sequence[str], keep_percent: float, merge: Literal["mean", "sum"]
) -> Tensor:
    """Return the merged task vector (M,), without scale; every source is read twice, one at a time.

    Args:
        read: source -> its task vector as one vector (M,).
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


def ties_update(
    task: Task, sources: Sources, keep_percent: float = 20.0, merge: Literal["mean", "sum"] = "mean"
) -> dict[str, Tensor]:
    """Return the merged task vector by tensor. Raises ``ValueError`` if a source is not finite."""
    state, device = task.backbone.tower.state_dict_open_clip(), task.backbone.device

    def read(source: str) -> Tensor:
        vector = sources.task_vector(source)
        vector_M = torch.cat([vector[name].to(device, torch.float32).flatten() for name in state])
        if not torch.isfinite(vector_M).all():
            raise ValueError(f"the task vector of {source} has NaN or infinite entries")
        return vector_M

    merged_M = merge_task_vectors(read, sources.names, keep_percent, merge)
    parts = torch.split(merged_M, [tensor.numel() for tensor in state.values()])
    return {name: part.view(state[name].shape) for name, part in zip(state, parts, strict=True)}


def adapt(task: Task, settings: TiesSettings) -> Adapted:
    """Merge the sources and choose the scale. Raises ``ValueError`` without sources, or if one is not finite."""
    return adapt_by_merging(
        task, settings, lambda sources: ties_update(task, sources, settings.keep_percent, settings.merge)
    )


register_merging(
    name="ties",
    title="TIES",
    palette=36,
    summary="trims the sources' task vectors, elects signs, and merges the rest",
    paper="https://arxiv.org/abs/2306.01708",
    settings_class=TiesSettings,
    adapt=adapt,
    uses_mean_task_vector=False,
)
