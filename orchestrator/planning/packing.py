"""What share of a GPU a cell asks for: by the memory that cells like it were measured to take, else by an assumption.

A share is one of a few fractions, so that workers can be kept from cell to cell: Tune reuses them only among cells that
ask for the same. A worker is held to its share, so one that needs more fails by itself and not its neighbours, and is
tried once more with a whole GPU.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from bolt.methods import METHODS
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from orchestrator.store.results import Result
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

RESERVED = "reserved_memory_mib"
"""Under this name a result's details say what torch had set aside on an accelerator at most."""


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
    def words(self) -> str:
        """As a cell of a table."""
        return f"{self.per_gpu} " + (f"({human_bytes(self.mib * 2**20)} measured)" if self.mib else "(assumed)")


NOTHING = Demand(0.0)


class Packing:
    """The demands of cells, learned from finished ones.

    Args:
        catalog: for the sizes of what nothing was measured of.
        done: finished cells; those that ran on an accelerator are learned from.
        gpu_mib: memory of the smallest GPU, ``None`` where that is unknown; shares are assumed then.

    One thread may learn while another asks: a demand asked for in between is the old or the new one.
    """

    def __init__(self, catalog: Catalog, done: Iterable[Result] = (), gpu_mib: float | None = None) -> None:
        self._catalog, self._gpu_mib = catalog, gpu_mib
        self._exact: dict[Hashable, float] = {}
        self._by_shots: dict[Hashable, dict[int, float]] = defaultdict(dict)
        self._too_small: dict[Hashable, float] = {}
        self._known: dict[Hashable, Demand] = {}
        for result in done:
            self.learn(result.cell, held_mib(result))

    @property
    def gpu_mib(self) -> float | None:
        """Memory of the smallest GPU."""
        return self._gpu_mib

    @gpu_mib.setter
    def gpu_mib(self, mebibytes: float | None) -> None:
        self._gpu_mib, self._known = mebibytes, {}

    def learn(self, cell: Cell, mebibytes: float) -> None:
        """A cell has finished that held so much of its GPU, as far as torch knows; 0 teaches nothing."""
        if mebibytes <= 0:
            return
        held, changed = mebibytes + CONTEXT_MIB, False
        if held > self._exact.get(_exactly(cell), 0.0):
            self._exact[_exactly(cell)], changed = held, True
        for kind in _kinds(cell):
            if held > self._by_shots[kind].get(cell.shots, 0.0):
                self._by_shots[kind][cell.shots], changed = held, True
        if changed:
            self._known = {}

    def outgrew(self, cell: Cell, share: float) -> None:
        """A cell ran out of memory in its share: those like it are not given so little again."""
        key = _exactly(cell)
        self._too_small[key] = max(share, self._too_small.get(key, 0.0))
        self._known = {}

    def demand(self, cell: Cell) -> Demand:
        """What a cell takes, by the most that cells of its kind were measured to take, the closest kind first."""
        known, key = self._known, _exactly(cell)
        if key not in known:
            known[key] = self._work_out(cell, key)
        return known[key]

    def _work_out(self, cell: Cell, key: Hashable) -> Demand:
        mib = self._measured(cell, key)
        if mib is None or self._gpu_mib is None:
            found = Demand(self._assumed(cell), mib)
        else:
            found = Demand(smallest_share(mib * HEADROOM, self._gpu_mib), mib)
        outgrown = self._too_small.get(key, 0.0)
        if found.share <= outgrown:
            return Demand(next((share for share in SHARES if share > outgrown), 1.0), mib)
        return found

    def _measured(self, cell: Cell, key: Hashable) -> float | None:
        if key in self._exact:
            return self._exact[key]
        for kind in _kinds(cell):
            if by_shots := self._by_shots.get(kind):
                return by_shots[min(by_shots, key=lambda shots: (abs(shots - cell.shots), -shots))]
        return None

    def _assumed(self, cell: Cell) -> float:
        if METHODS[cell.method.name].changes_tower:
            return 1.0
        if self._gpu_mib is None:
            return FROZEN_SHARE
        return max(FROZEN_SHARE, smallest_share(frozen_mib(cell, self._catalog) * HEADROOM, self._gpu_mib))

    def resources(self, cell: Cell, settings: RunSettings, gpus: float) -> Resources:
        """What a cell occupies on a cluster that has, or can have, so many GPUs."""
        if not uses_gpus(settings, gpus):
            return Resources(cpus=settings.threads)
        return Resources(cpus=settings.threads, gpus=self.demand(cell).share)


def _exactly(cell: Cell) -> Hashable:
    """Cells that differ in their seed alone."""
    return (cell.backbone.name, cell.track, cell.method, cell.domain, cell.dataset.name, cell.shots)


def _kinds(cell: Cell) -> tuple[Hashable, ...]:
    """Wider kinds, the closest first: the same but for dataset and k; the same but for settings and domain, too."""
    at = (cell.backbone.name, cell.track)
    return (*at, cell.method, cell.domain), (*at, cell.method.name)


def held_mib(result: Result) -> float:
    """What a finished cell's process held of its accelerator by torch's account; 0 for one on a CPU."""
    if result.manifest.device.startswith(("cpu", "none")):
        return 0.0
    return float(result.details.get(RESERVED, result.peak_memory_mib))


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
