"""Decides the share of a GPU that each cell asks for, from the measured memory of similar cells or an assumption.

A share is one of a few fractions, because Tune reuses a worker only for cells that ask for the same resources. A worker
cannot take more than its share. So a cell that needs more fails alone, and is tried once more with a whole GPU.
"""

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
"""The possible shares of a GPU. Each is half of the next, so that they fill a GPU without a remainder."""

HEADROOM = 1.25
"""Measured memory is multiplied by this factor, because another dataset or order of allocations can take more."""

FROZEN_SHARE = 0.25
"""The share of a GPU that is assumed for a cell that only reads cached features, as long as no such cell was measured.
Plans print it as an assumption."""

LEAST_TRAINING_SHARE = 0.25
"""The smallest share of a GPU that a fine-tuning asks for. It is also the smallest share that is assumed for a cell
that changes the tower, as long as no similar cell was measured."""

TYPICAL_BATCH = 32
"""Assumed number of images in a training step, if the method has no setting ``batch_size``."""

ASSUMED_GPU_MIB = 80.0 * 1024
"""Assumed memory of a GPU if a plan is shown on a machine without a GPU. Plans print it as an assumption."""


class Packing:
    """Decides the share of a GPU that each cell asks for. Several threads may use it at once.

    Args:
        costs: predicts the memory of cells, and learns it while they run.
        gpu_mib: memory of the smallest GPU; ``None`` if unknown, so that shares are assumed. It may be set later.
        gpus: the largest number of GPUs that the run can use, including those that its cluster can add. With 0, nothing
            asks for a GPU. It may be set later.
    """

    def __init__(
        self, catalog: Catalog, costs: CostModel | None = None, gpu_mib: float | None = None, gpus: float = 0.0
    ) -> None:
        self.gpu_mib, self.gpus = gpu_mib, gpus
        self.costs, self._catalog = costs or CostModel(), catalog
        self._too_small: dict[Hashable, float] = {}

    def learn_oom(self, cell: Cell, share: float) -> None:
        """Record that a cell ran out of memory, so that cells which differ only in the seed get a larger share."""
        key = same_but_seed(cell)
        self._too_small[key] = max(share, self._too_small.get(key, 0.0))

    def memory_mib(self, cell: Cell) -> float | None:
        """Return the predicted GPU memory of a cell in MiB, with CUDA's context; ``None`` without a prediction."""
        held = self.costs.memory_mib(cell)
        return None if held is None else held + CONTEXT_MIB

    def share(self, cell: Cell) -> float:
        """Return the share of a GPU that a cell asks for. If its memory cannot be predicted, a share is assumed."""
        mib, gpu_mib = self.memory_mib(cell), self.gpu_mib
        if mib is not None and gpu_mib is not None:
            share = smallest_share(mib * HEADROOM, gpu_mib)
        else:  # if the assumed share is too small, the cell is started once more, with a whole GPU
            share = self._assumed_share(cell)
        too_small = self._too_small.get(same_but_seed(cell), 0.0)
        return share if share > too_small else next((larger for larger in SHARES if larger > too_small), 1.0)

    def _assumed_share(self, cell: Cell) -> float:
        """Return the share of a GPU for a cell whose memory cannot be predicted.

        If its method changes the tower, the share is enough to train all weights and to hold the sources' task vectors.
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
        """Return the share of a GPU that the build of an artifact asks for; 0 for a build on the CPU."""
        if not self.gpus:
            return 0.0
        mib = spec.gpu_mib(self._catalog)
        if mib is None or self.gpu_mib is None:
            return spec.gpu_share
        return min(spec.gpu_share, max(LEAST_TRAINING_SHARE, smallest_share(mib * HEADROOM, self.gpu_mib)))


def smallest_share(mebibytes: float, gpu_mib: float) -> float:
    """Return the smallest of :data:`SHARES` that has ``mebibytes`` on a GPU of ``gpu_mib`` MiB; 1 if none has."""
    return next((share for share in SHARES if mebibytes <= share * gpu_mib), 1.0)
