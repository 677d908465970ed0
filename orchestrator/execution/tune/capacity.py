"""The capacity of a cluster while cells run: its size, which can grow, and how much of it each cell requests."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.join import HEAD_RESOURCE
from orchestrator.planning.packing import Packing, uses_gpus

ANSWER_SECONDS = 30.0
"""How long the nodes may take to answer. The memory of a node that has not answered by then counts as unknown."""


class ClusterCapacity:
    """The size of a cluster, now and once it has grown, and the share of it that a cell requests.

    ``packing`` computes what a cell requests; it is told the memory of the GPUs, again whenever GPUs join.
    """

    def __init__(self, limits: Resources, packing: Packing, settings: RunSettings) -> None:
        self._packing, self._settings = packing, settings
        self._max_cpus, self._max_gpus = _max_size(limits)
        self._most_gpus = cluster_size()[1]
        self._queries: list[ray.ObjectRef[float]] = []
        if uses_gpus(settings, self._most_gpus):
            self._ask_for_memory()
        while self._queries:
            self._read_answers(timeout=0.5)

    @property
    def gpus(self) -> float:
        """The most GPUs there have been or can be. Work that needs a GPU waits for one and does not run without."""
        return max(self._most_gpus, self._max_gpus)

    def request(self, cell: Cell) -> Resources:
        """Return what a cell requests, by what is known now."""
        return self._packing.request(cell, self._settings, self.gpus)

    def size(self) -> tuple[float, float]:
        """CPUs and GPUs that cells can be given out to: those that there are, or those the autoscaler can start."""
        cpus, gpus = cluster_size()
        if gpus > self._most_gpus:
            self._most_gpus = gpus
            self._ask_for_memory()
        self._read_answers()
        return max(cpus, self._max_cpus), max(gpus, self._max_gpus)

    def slots(self, cells: Iterable[Cell]) -> int:
        """How many cells can run at a time if all request the least that any of them requests."""
        requests = {self.request(cell) for cell in cells}
        if not requests:
            return 1
        cpus, gpus = self.size()
        slots = cpus / min(request.cpus for request in requests)
        if least := min(request.gpus for request in requests):
            slots = min(slots, gpus / least)
        return max(1, int(slots))

    def _ask_for_memory(self) -> None:
        """Ask every node for its smallest GPU. The question takes no GPU and starts nothing on one."""
        query = ray.remote(num_cpus=0)(_smallest_on_this_node)
        self._queries = [
            query.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
            for node in ray.nodes()
            if node["Alive"] and node["Resources"].get("GPU")
        ]
        self._deadline = time.monotonic() + ANSWER_SECONDS

    def _read_answers(self, timeout: float = 0.0) -> None:
        """Tell ``packing`` the memory of the smallest GPU, if all nodes have answered or have had the time to."""
        if not self._queries:
            return
        ready, missing = ray.wait(self._queries, num_returns=len(self._queries), timeout=timeout)
        if missing and time.monotonic() < self._deadline:
            return
        answers: list[float] = []
        for answer in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # the node is going
                answers.append(ray.get(answer))
        self._packing.gpu_mib = min((mebibytes for mebibytes in answers if mebibytes), default=None)
        self._queries = []


def cluster_size() -> tuple[float, float]:
    """CPUs and GPUs that the cluster has now."""
    resources = ray.cluster_resources()
    return resources.get("CPU", 0.0), resources.get("GPU", 0.0)


def _max_size(limits: Resources) -> tuple[float, float]:
    """CPUs and GPUs once the autoscaler has started every node it may; none without one: lost nodes stay lost."""
    if limits == Resources(0, 0):
        return 0.0, 0.0
    head = next(node["Resources"] for node in ray.nodes() if HEAD_RESOURCE in node["Resources"])
    return head.get("CPU", 0.0) + limits.cpus, head.get("GPU", 0.0) + limits.gpus


def _smallest_on_this_node() -> float:
    """Memory of this machine's smallest GPU in MiB; 0 where there is none."""
    from orchestrator.util.machine import local_gpus

    return min((gpu.total for gpu in local_gpus()), default=0) / 2**20
