"""LiNeS: scales a merged update linearly with the depth of the block (Wang et al., ICLR 2025).

Paper: arXiv:2410.17146. The update M is the sum of the sources' task vectors, or the merged vector of TIES or TSV-M.
Block l of L changes by ``(a + b l / (L - 1)) M``, all other tensors by ``a M``. Early blocks change least, because they
extract features that all tasks share. a is given by::

    a = |sum_t tau_t|_1 / (T |M|_1)

The L1 norms run over all tensors; for the plain sum a is 1 / T. What differs from the official code:

- b is chosen on the support, among 0.1 to 1. The official code chooses it on validation data of the sources' tasks.
- The tower can have any number of blocks. The official code supports 12 and 24.

Shape legend: L blocks, T sources.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from bolt.methods.common.merging import MergingSettings, register_merging, required_sources, with_update
from bolt.methods.common.scale_selection import choose_scale
from bolt.methods.task_arithmetic import sum_of_task_vectors
from bolt.methods.ties import ties_update
from bolt.methods.tsv_merge import directions_of_each, tsv_update
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task

_BLOCK = re.compile(r"blocks\.(\d+)\.")

UPDATES: Mapping[str, Callable[[Task, Sources], dict[str, Tensor]]] = {
    "task_arithmetic": sum_of_task_vectors,
    "ties": ties_update,
    "tsv_merge": tsv_update,
}
"""The updates that LiNeS can scale, by the name of the merging method."""


@dataclass(frozen=True)
class LinesSettings(MergingSettings):
    """The update that is scaled, and the candidates for b.

    Attributes:
        of: the merging method whose update is scaled.
        alphas: candidates for b, the growth from the first block to the last.
    """

    of: Literal["task_arithmetic", "ties", "tsv_merge"] = "task_arithmetic"
    alphas: tuple[float, ...] = tuple(step / 10 for step in range(1, 11))


def scaled_by_depth(update: Mapping[str, Tensor], layers: int, constant: float, growth: float) -> dict[str, Tensor]:
    """Scale the update of block l by ``constant + growth l / (layers - 1)``, all other tensors by ``constant``."""
    scaled = {}
    for name, tensor in update.items():
        block = _BLOCK.search(name)
        depth = int(block[1]) / max(layers - 1, 1) if block else 0.0
        scaled[name] = (constant + growth * depth) * tensor
    return scaled


def constant_of(update: Mapping[str, Tensor], total: Mapping[str, Tensor], sources: int) -> float:
    """Return the factor a: the L1 norm of ``total``, divided by ``sources`` times the L1 norm of ``update``."""
    norms = [sum(float(tensor.double().abs().sum()) for tensor in one.values()) for one in (total, update)]
    return norms[0] / (sources * norms[1]) if norms[1] else 0.0


@register_merging(
    title="LiNeS",
    palette=44,
    summary="scales a merged update with the depth of the block",
    paper="https://arxiv.org/abs/2410.17146",
    source_directions=lambda settings, width, sources: (
        directions_of_each(settings, width, sources) if settings.of == "tsv_merge" else 0
    ),
)
def adapt(task: Task, settings: LinesSettings) -> Adapted:
    """Merge, scale by depth, and choose b. Raises ``ValueError`` without sources, or if a source is not finite."""
    base, sources, device = task.backbone.tower, required_sources(task), task.backbone.device

    def make() -> tuple[dict[str, Tensor], float]:
        update = {name: tensor.to(device) for name, tensor in UPDATES[settings.of](task, sources).items()}
        return update, constant_of(update, sum_of_task_vectors(task, sources), len(sources.names))

    update, constant = sources.cached(("lines", settings), make)

    def tower_at(growth: float) -> Any:
        return with_update(base, scaled_by_depth(update, base.shape.layers, constant, growth))

    choice = choose_scale(task, settings.alphas, tower_at)
    details: dict[str, float | str] = {"constant": constant, "growth": choice.scale, "growth_by": choice.by}
    key = settings, sources.names, choice.scale
    return Adapted(task.text_head, tower_at(choice.scale), details=details, source_key=key)
