"""What share of a GPU a cell asks for: by the memory that cells like it were measured to take, else by an assumption.

A share is one of a few fractions, so that workers can be kept from cell to cell: Tune reuses them only among cells that
ask for the same. A worker is held to its share, so one that needs more fails by itself and not its neighbours, and is
tried once more with a whole GPU.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from bolt.methods import METHODS
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from orchestrator.planning.cost import CostModel, same_but_seed
from orchestrator.util.units import human_bytes

SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)
"""What can be asked for. All are halves of one another, so that they fill a GPU without a rest."""

HEADROOM = 1.25
"""A share holds so many times what was measured; another dataset or another order of allocations can take more."""

CONTEXT_MIB = 600.0
"""What CUDA's context, its libraries' code and their workspaces take of a GPU for each process, beside what torch
allocates. An assumption, printed as one: it depends on the GPU and the driver."""

FROZEN_SHARE = 0.25
"""For a cell that only reads cached features, of which nothing was measured. An assumption, printed as one."""

ASSUMED_GPU_MIB = 80.0 * 1024
"""Memory of a GPU that is not here, to show a plan by. An assumption, printed as one."""


@dataclass(frozen=True)
class Demand:
    """What a cell takes of a GPU.

    Attributes:
        share: of one GPU.
        mib: the memory that was measured, context included; ``None`` where nothing was, and the share is assumed.
    """

    share: float
    mib: float | None = None

    @property
    def per_gpu(self) -> int:
        """How many such cells one GPU holds."""
        return int(1 / self.share)

    @property
    def summary(self) -> str:
        """How many cells one GPU holds, and whether that is measured."""
        return f"{self.per_gpu} " + (f"({human_bytes(self.mib * 2**20)} measured)" if self.mib else "(assumed)")


class Packing:
    """Decides what share of a GPU each cell asks for.

    Args:
        catalog: sizes of the backbones and datasets, for cells without measured relatives.
        costs: predicts the memory of cells; it learns while they run.
        gpu_mib: memory of the smallest GPU; ``None`` where that is unknown, and shares are assumed.

    One thread may teach it while another asks; the answer is then the old one or the new one.
    """

    def __init__(self, catalog: Catalog, costs: CostModel | None = None, gpu_mib: float | None = None) -> None:
        self._catalog, self._costs, self._gpu_mib = catalog, costs or CostModel(), gpu_mib
        self._too_small: dict[Hashable, float] = {}
        self._assumed: dict[Hashable, float] = {}

    @property
    def gpu_mib(self) -> float | None:
        """Memory of the smallest GPU."""
        return self._gpu_mib

    @gpu_mib.setter
    def gpu_mib(self, mebibytes: float | None) -> None:
        self._gpu_mib, self._assumed = mebibytes, {}

    def learn(self, cell: Cell, mebibytes: float) -> None:
        """Learn how much of its GPU a finished cell held, by torch's account; 0 teaches nothing."""
        self._costs.learn_memory(cell, mebibytes)

    def outgrew(self, cell: Cell, share: float) -> None:
        """Learn that a cell ran out of memory in its share; cells that differ in their seed alone get more."""
        key = same_but_seed(cell)
        self._too_small[key] = max(share, self._too_small.get(key, 0.0))

    def demand(self, cell: Cell) -> Demand:
        """What a cell takes, by the most that its nearest measured relatives took."""
        held, share = self._costs.memory_mib(cell), self._assumed_share(cell)
        mib = None if held is None else held + CONTEXT_MIB
        if mib is not None and self._gpu_mib is not None:
            share = smallest_share(mib * HEADROOM, self._gpu_mib)
        too_small = self._too_small.get(same_but_seed(cell), 0.0)
        if share <= too_small:
            share = next((larger for larger in SHARES if larger > too_small), 1.0)
        return Demand(share, mib)

    def _assumed_share(self, cell: Cell) -> float:
        """The share of a cell without measured relatives, or on GPUs of unknown size."""
        key, known = same_but_seed(cell), self._assumed
        if key not in known:
            if METHODS[cell.method.name].changes_tower:
                known[key] = 1.0
            elif self._gpu_mib is None:
                known[key] = FROZEN_SHARE
            else:
                least = smallest_share(frozen_mib(cell, self._catalog) * HEADROOM, self._gpu_mib)
                known[key] = max(FROZEN_SHARE, least)
        return known[key]

    def resources(self, cell: Cell, settings: RunSettings, gpus: float) -> Resources:
        """What a cell occupies on a cluster that has, or can have, so many GPUs."""
        if not uses_gpus(settings, gpus):
            return Resources(cpus=settings.threads)
        return Resources(cpus=settings.threads, gpus=self.demand(cell).share)


def smallest_share(mebibytes: float, gpu_mib: float) -> float:
    """The smallest share of a GPU that holds so much; a whole one where even that does not."""
    return next((share for share in SHARES if mebibytes <= share * gpu_mib), 1.0)


def frozen_mib(cell: Cell, catalog: Catalog) -> float:
    """What a cell that trains no tower needs at least: the tower, all features it may read, the context."""
    method = METHODS[cell.method.name]
    views = method.support_feature_views(method.configure(cell.method.settings_dict(), cell.track)) or 0
    backbone, target = catalog.backbone(cell.backbone.name), catalog.dataset(cell.dataset.name)
    rows = target.classes * (1 + cell.shots * (1 + views)) + target.sizes.test
    return CONTEXT_MIB + 4 * (backbone.parameters + rows * backbone.embed_dim) / 2**20


def uses_gpus(settings: RunSettings, gpus: float) -> bool:
    """Whether work on a cluster with so many GPUs asks for them."""
    return bool(gpus) and settings.device != "cpu"


def hold_to_share(device: str, share: float) -> None:
    """Let this process take no more of its GPU than its share, the context included; more raises in torch."""
    if share >= 1.0 or not device.startswith("cuda"):
        return
    import torch

    _, total = torch.cuda.mem_get_info()
    own = share - CONTEXT_MIB * 2**20 / total
    torch.cuda.set_per_process_memory_fraction(max(own, share / 4))
