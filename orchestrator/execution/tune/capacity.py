"""The capacity of a cluster while cells run: its size, which can grow, and how much of it each cell requests."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

import ray

from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.execution.tune.gpu_memory import smallest_gpu_mib
from orchestrator.planning.packing import Packing, uses_gpus

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings
    from orchestrator.execution.cluster import ClusterInfo

CANCEL_SECONDS = 5.0
"""How long a thread that waits for a node may take to notice that its answer is not needed any more."""


class ClusterCapacity:
    """The size of a cluster, now and once it has grown, and the share of it that a cell requests.

    A context manager. After the block, none of its threads uses Ray any more, so that Ray can be shut down.

    Args:
        info: the cluster when this process connected to it.
        packing: computes what a cell requests; it is told the memory of the GPUs, again whenever GPUs join.
        settings: how cells run.
    """

    def __init__(self, info: ClusterInfo, packing: Packing, settings: RunSettings) -> None:
        self.packing, self._settings = packing, settings
        can_grow = info.max_size != (info.cpus, info.gpus)
        self._max_size = info.max_size if can_grow else (0.0, 0.0)  # without an autoscaler, lost nodes stay lost
        self._most_gpus = info.gpus
        self._cancelled, self._threads = threading.Event(), list[threading.Thread]()
        if uses_gpus(settings, info.gpus):
            packing.gpu_mib = smallest_gpu_mib()

    @property
    def gpus(self) -> float:
        """The most GPUs there have been or can be. Work that needs a GPU waits for one and does not run without."""
        return max(self._most_gpus, self._max_size[1])

    def request(self, cell: Cell) -> Resources:
        """What a cell requests, by what is known now."""
        return self.packing.resources(cell, self._settings, self.gpus)

    def size(self) -> tuple[float, float]:
        """CPUs and GPUs that cells can be given out to: those that are there and those the autoscaler would start."""
        cpus, gpus = cluster_size()
        if gpus > self._most_gpus:
            self._most_gpus = gpus
            thread = threading.Thread(target=self._measure, name="gpu-memory", daemon=True)  # a node may take a while
            self._threads.append(thread)
            thread.start()
        return max(cpus, self._max_size[0]), max(gpus, self._max_size[1])

    def slots(self, cells: Iterable[Cell]) -> int:
        """How many cells can run at a time if all request the least that any of them requests."""
        requests = {self.request(cell) for cell in cells}
        if not requests:
            return 1
        cpus, gpus = self.size()
        slots = cpus / max(min(request.cpus for request in requests), 0.01)
        if least := min(request.gpus for request in requests):
            slots = min(slots, gpus / least)
        return max(1, int(slots))

    def _measure(self) -> None:
        self.packing.gpu_mib = smallest_gpu_mib(self._cancelled)

    def __enter__(self) -> ClusterCapacity:
        return self

    def __exit__(self, *error: object) -> None:
        self._cancelled.set()
        for thread in self._threads:
            thread.join(CANCEL_SECONDS)


def cluster_size() -> tuple[float, float]:
    """CPUs and GPUs that the cluster has now."""
    resources = ray.cluster_resources()
    return resources.get("CPU", 0.0), resources.get("GPU", 0.0)
