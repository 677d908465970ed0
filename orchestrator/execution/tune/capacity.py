"""The capacity of a cluster while cells run: its size, which can grow, and the memory of its GPUs."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from orchestrator.core.events import Resources
from orchestrator.execution.join import HEAD_RESOURCE
from orchestrator.planning.packing import Packing
from orchestrator.util.units import pluralize

ANSWER_SECONDS = 20.0
"""How long the nodes may take to answer. The memory of a node that has not answered by then counts as unknown."""

WAIT_SECONDS = 60.0
"""Seconds that the first worker may wait for CPUs and GPUs before the user is told."""


def cluster_capacity(limits: Resources, packing: Packing, device: str | None) -> Callable[[], Resources]:
    """Return a function that returns how many CPUs and GPUs the cluster has, or can have once it has grown.

    Unless the ``device`` of the run is the CPU, the function also updates ``packing``: the number of GPUs and, when
    GPUs join, the memory of the smallest GPU.

    Args:
        limits: CPUs and GPUs of the nodes that the autoscaler can start besides the head; 0 without an autoscaler.
    """
    grown = Resources(0, 0)  # size of the cluster when all nodes have started; 0 without an autoscaler
    if limits != Resources(0, 0):
        head = next(node["Resources"] for node in ray.nodes() if HEAD_RESOURCE in node["Resources"])
        grown = Resources(head.get("CPU", 0.0) + limits.cpus, head.get("GPU", 0.0) + limits.gpus)
    most_gpus = 0.0

    def size() -> Resources:
        nonlocal most_gpus
        now = cluster_size()
        if device != "cpu":
            if now.gpus > most_gpus:
                most_gpus, packing.gpu_mib = now.gpus, smallest_gpu_mib()
            packing.gpus = max(most_gpus, grown.gpus)
        return Resources(max(now.cpus, grown.cpus), max(now.gpus, grown.gpus))

    size()
    return size


@contextlib.contextmanager
def told_of_wait(request: Resources, warn: Callable[[str], None]) -> Iterator[None]:
    """Call ``warn`` once if, in the first minute of the block, no node has the CPUs and GPUs of ``request`` free.

    Ray itself waits without a message. The run goes on waiting too, because an autoscaler may add nodes.
    """
    probe = ray.remote(num_cpus=request.cpus, num_gpus=request.gpus)(lambda: None).remote().future()

    def tell() -> None:
        if not probe.done():
            size, share = cluster_size(), f" and {request.gpus:g} of a GPU" if request.gpus else ""
            needs = f"{pluralize(f'{request.cpus:g}', 'CPU')} (--threads){share}"
            has = f"the cluster has {size.cpus:g} CPUs and {size.gpus:g} GPUs in all"
            what = f"for {WAIT_SECONDS:.0f} s, no node has had {needs} free for a cell; {has}"
            warn(f"{what}. The run waits until other work ends or a node joins (see `ray status`)")

    timer = threading.Timer(WAIT_SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def cluster_size() -> Resources:
    """Return the CPUs and GPUs that the cluster has now."""
    resources = ray.cluster_resources()
    return Resources(resources.get("CPU", 0.0), resources.get("GPU", 0.0))


def smallest_gpu_mib() -> float | None:
    """Return the memory of the cluster's smallest GPU in MiB; ``None`` if it is unknown.

    Each node with GPUs is asked. The query reserves no GPU and runs nothing on a GPU.
    """
    query = ray.remote(num_cpus=0)(_smallest_on_this_node)
    queries = [
        query.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in ray.nodes()
        if node["Alive"] and node["Resources"].get("GPU")
    ]
    found: list[float] = []
    for answer in ray.wait(queries, num_returns=len(queries), timeout=ANSWER_SECONDS)[0] if queries else ():
        with contextlib.suppress(ray.exceptions.RayError):  # the node is leaving the cluster
            found.append(ray.get(answer))
    return min(filter(None, found), default=None)


def _smallest_on_this_node() -> float:
    """Return the memory of this machine's smallest GPU in MiB; 0 without a GPU."""
    from orchestrator.util.machine import local_gpus

    return min((gpu.total for gpu in local_gpus()), default=0) / 2**20
