"""The share of a GPU that each cell asks for, from the measured memory of cells like it, else assumed.

A share is one of a few fractions, because Tune reuses a worker only for cells that ask for the same resources. A worker
cannot take more than its share. So a cell that needs more fails alone, and is tried once more with a whole GPU.
"""

from __future__ import annotations

from collections.abc import Hashable

from bolt.methods import METHODS
from orchestrator.artifacts.source_model import training_mib
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.core.gpu_memory import CONTEXT_MIB
from orchestrator.planning.cost import CostModel, same_but_seed

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""The possible shares. Each is half of the next, so that they fill a GPU without a remainder."""

HEADROOM = 1.25
"""Factor on measured memory: another dataset or another order of allocations can take more."""

FROZEN_SHARE = 0.25
"""Assumed share of a cell that only reads cached features and has no measurement; printed as an assumption."""

LEAST_TRAINING_SHARE = 0.25
"""A fine-tuning, or a cell that trains the tower and was not measured, gets at least so much of a GPU."""

TYPICAL_BATCH = 32
"""Images in a training step of a method whose settings do not say it."""

ASSUMED_GPU_MIB = 80.0 * 1024
"""Assumed memory of a GPU where the plan is shown on a machine without one; printed as an assumption."""


class Packing:
    """Decides which share of a GPU each cell asks for.

    Args:
        costs: predicts the memory of cells, and learns it while they run.
        gpu_mib: memory of the smallest GPU, may be set later; ``None`` where unknown, and shares are assumed.
        gpus: the most GPUs that the run can use, now or once its cluster has grown, may be set later. Cells wait for
            one that is not there yet; where it is 0, nothing asks for a GPU.

    Several threads may use it at once; an answer then holds for the moment before or after a change.
    """

    def __init__(
        self, catalog: Catalog, costs: CostModel | None = None, gpu_mib: float | None = None, gpus: float = 0.0
    ) -> None:
        self.gpu_mib, self.gpus = gpu_mib, gpus
        self.costs, self._catalog = costs or CostModel(), catalog
        self._too_small: dict[Hashable, float] = {}

    def learn_oom(self, cell: Cell, share: float) -> None:
        """Record that a cell ran out of memory in its share. Cells that differ only in the seed get a larger one."""
        key = same_but_seed(cell)
        self._too_small[key] = max(share, self._too_small.get(key, 0.0))

    def memory_mib(self, cell: Cell) -> float | None:
        """MiB of a GPU that a cell takes, CUDA's context included; ``None`` where no similar cell was measured."""
        held = self.costs.memory_mib(cell)
        return None if held is None else held + CONTEXT_MIB

    def share(self, cell: Cell) -> float:
        """Return the share of a GPU that a cell asks for, from the memory of similar measured cells, else assumed."""
        mib, gpu_mib = self.memory_mib(cell), self.gpu_mib
        if mib is not None and gpu_mib is not None:
            share = smallest_share(mib * HEADROOM, gpu_mib)
        else:  # one that is too small costs one start: the cell is then measured with a whole GPU
            share = self._assumed_share(cell)
        too_small = self._too_small.get(same_but_seed(cell), 0.0)
        return share if share > too_small else next((larger for larger in SHARES if larger > too_small), 1.0)

    def _assumed_share(self, cell: Cell) -> float:
        """Return the share of a cell without a measurement.

        A cell that changes the tower gets room to train all weights, and for the task vectors of its sources.
        """
        if not METHODS[cell.method.name].changes_tower:
            return FROZEN_SHARE
        if self.gpu_mib is None:
            return 1.0
        entry = self._catalog.backbone(cell.backbone.name)
        training = training_mib(entry, cell.method.settings_dict().get("batch_size", TYPICAL_BATCH))
        task_vectors = len(cell.sources) * FLOAT_BYTES * entry.parameters / 2**20
        return max(LEAST_TRAINING_SHARE, smallest_share((training + task_vectors) * HEADROOM, self.gpu_mib))

    def request(self, cell: Cell, threads: int) -> Resources:
        """Return the CPUs and the GPU share that a cell asks for."""
        return Resources(threads, self.share(cell) if self.gpus else 0.0)

    def share_of_build(self, spec: ArtifactSpec) -> float:
        """Return the share of a GPU that the build of an artifact asks for; 0 for a kind that is built on the CPU."""
        if not self.gpus:
            return 0.0
        mib = spec.gpu_mib(self._catalog)
        if mib is None or self.gpu_mib is None:
            return spec.gpu_share
        return min(spec.gpu_share, max(LEAST_TRAINING_SHARE, smallest_share(mib * HEADROOM, self.gpu_mib)))


def smallest_share(mebibytes: float, gpu_mib: float) -> float:
    """Return the smallest share of a GPU that holds the memory; a whole GPU where none does."""
    return next((share for share in SHARES if mebibytes <= share * gpu_mib), 1.0)
