"""The capacity of a cluster while cells run: its size, which can grow, and how much of it each cell requests."""

from __future__ import annotations

import contextlib

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.core.cell import Cell
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.join import HEAD_RESOURCE
from orchestrator.planning.packing import Packing, uses_gpus

ANSWER_SECONDS = 20.0
"""How long the nodes may take to answer. The memory of a node that has not answered by then counts as unknown."""


class ClusterCapacity:
    """The size of a cluster, now and once it has grown, and the share of it that a cell requests.

    ``limits``: what the nodes have that the autoscaler can start. ``packing`` computes what a cell requests; it learns
    the memory of the GPUs, again whenever GPUs join.
    """

    def __init__(self, limits: Resources, packing: Packing, settings: RunSettings) -> None:
        self._packing, self._settings = packing, settings
        self._grown = Resources(0, 0)  # once every node that can start has started; none without an autoscaler
        if limits != Resources(0, 0):
            head = next(node["Resources"] for node in ray.nodes() if HEAD_RESOURCE in node["Resources"])
            self._grown = Resources(head.get("CPU", 0.0) + limits.cpus, head.get("GPU", 0.0) + limits.gpus)
        self._most_gpus = 0.0
        self.size()

    @property
    def gpus(self) -> float:
        """The most GPUs there have been or can be. Work that needs a GPU waits for one and does not run without."""
        return max(self._most_gpus, self._grown.gpus)

    def request(self, cell: Cell) -> Resources:
        """Return what a cell requests, by what is known now."""
        return self._packing.request(cell, self._settings, self.gpus)

    def size(self) -> Resources:
        """Return what cells can be given out to: what the cluster has, or what the autoscaler can start."""
        now = cluster_size()
        if now.gpus > self._most_gpus:
            self._most_gpus = now.gpus
            if uses_gpus(self._settings, now.gpus):
                self._packing.gpu_mib = smallest_gpu_mib()
        return Resources(max(now.cpus, self._grown.cpus), max(now.gpus, self._grown.gpus))


def cluster_size() -> Resources:
    """Return the CPUs and GPUs that the cluster has now."""
    resources = ray.cluster_resources()
    return Resources(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def smallest_gpu_mib() -> float | None:
    """Ask every node for the memory of its smallest GPU, and return the least; ``None`` if none has answered.

    The question takes no GPU and starts nothing on one.
    """
    query = ray.remote(num_cpus=0)(_smallest_on_this_node)
    queries = [
        query.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    found: list[float] = []
    for answer in ray.wait(queries, num_returns=len(queries), timeout=ANSWER_SECONDS)[0] if queries else ():
        with contextlib.suppress(ray.exceptions.RayError):  # the node is going
            found.append(ray.get(answer))
    return min(filter(None, found), default=None)


def _smallest_on_this_node() -> float:
    """Memory of this machine's smallest GPU in MiB; 0 where there is none."""
    from orchestrator.util.machine import local_gpus

    return min((gpu.total for gpu in local_gpus()), default=0) / 2**20
