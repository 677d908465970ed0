"""The memory of a cluster's GPUs, asked of one node of each type."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ANSWER_SECONDS = 30.0
"""How long the nodes may take to answer. The memory of a node that has not answered by then counts as unknown."""

_POLL_SECONDS = 0.5


def smallest_gpu_mib(cancelled: threading.Event | None = None) -> float | None:
    """Memory of the smallest GPU of the cluster in MiB; ``None`` where there is none or no node answers.

    The question takes no GPU and starts nothing on one. When ``cancelled`` is set, no more answers are waited for.
    """
    query = ray.remote(num_cpus=0)(_smallest_on_this_node)
    queries = [
        query.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in _one_node_of_each_type()
    ]
    ready: list[ray.ObjectRef[float]] = []
    deadline = time.monotonic() + ANSWER_SECONDS
    while len(ready) < len(queries) and time.monotonic() < deadline and not (cancelled and cancelled.is_set()):
        ready, _ = ray.wait(queries, num_returns=len(queries), timeout=_POLL_SECONDS)
    answers: list[float] = []
    for answer in ready:
        try:
            answers.append(ray.get(answer))
        except ray.exceptions.RayError:  # the node is going; its type is asked again when another one comes
            continue
    return min((mebibytes for mebibytes in answers if mebibytes), default=None)


def _one_node_of_each_type() -> list[str]:
    """Node ids; nodes with the same kind and number of GPUs and as many CPUs are one type."""
    node_ids: dict[Hashable, str] = {}
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"] and resources.get("GPU"):
            kind = frozenset(name for name in resources if name.startswith("accelerator_type:"))
            node_ids.setdefault((kind, resources["GPU"], resources.get("CPU", 0.0)), node["NodeID"])
    return list(node_ids.values())


def _smallest_on_this_node() -> float:
    from orchestrator.util.machine import local_gpus

    return min((gpu.total for gpu in local_gpus()), default=0) / 2**20
