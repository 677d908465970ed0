"""What a cluster has room for while cells run: it can grow, and what a cell asks for is learned meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.execution.tune.driver import now_there
from orchestrator.execution.tune.gpus import smallest_gpu_mib
from orchestrator.planning.packing import Packing, uses_gpus

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings
    from orchestrator.execution.cluster import ClusterInfo

SETTLE_SECONDS = 5.0
"""How long a thread that waits for a node gets to notice that nobody waits for it any more."""


class Room:
    """The size of a cluster, now and as far as it may grow by itself, and the share of it that a cell asks for.

    A context manager: when it is left, none of its threads talks to Ray any more, which can be ended then.

    Args:
        info: the cluster as it was joined.
        packing: what is known of the cells' memory; told how large the GPUs are, again whenever there are more.
        settings: how cells run.
    """

    def __init__(self, info: ClusterInfo, packing: Packing, settings: RunSettings) -> None:
        self.packing, self._settings = packing, settings
        grows = info.may_become != (info.cpus, info.gpus)
        self._may_become = info.may_become if grows else (0.0, 0.0)  # of what is lost, nothing comes back by itself
        self._seen_gpus = info.gpus
        self._over, self._measuring = threading.Event(), list[threading.Thread]()
        if uses_gpus(settings, info.gpus):
            packing.gpu_mib = smallest_gpu_mib()

    @property
    def gpus(self) -> float:
        """The most GPUs there have been or may be: work that asks for one waits for them rather than go without."""
        return max(self._seen_gpus, self._may_become[1])

    def request(self, cell: Cell) -> Resources:
        """What a cell asks for, by what is known now."""
        return self.packing.resources(cell, self._settings, self.gpus)

    def capacity(self) -> tuple[float, float]:
        """CPUs and GPUs that cells can be dealt to: those there are, and those an autoscaler would start."""
        cpus, gpus = now_there()
        if gpus > self._seen_gpus:
            self._seen_gpus = gpus
            thread = threading.Thread(target=self._measure, name="gpu-memory", daemon=True)  # a node may take a while
            self._measuring.append(thread)
            thread.start()
        return max(cpus, self._may_become[0]), max(gpus, self._may_become[1])

    def places(self, cells: Iterable[Cell]) -> int:
        """How many cells can be under way at a time when all ask for the least that any asks for."""
        requests = {self.request(cell) for cell in cells}
        if not requests:
            return 1
        cpus, gpus = self.capacity()
        places = cpus / max(min(request.cpus for request in requests), 0.01)
        if least := min(request.gpus for request in requests):
            places = min(places, gpus / least)
        return max(1, int(places))

    def _measure(self) -> None:
        self.packing.gpu_mib = smallest_gpu_mib(self._over)

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._measuring:
            thread.join(SETTLE_SECONDS)
