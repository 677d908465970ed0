"""How much memory the GPUs of a cluster have: each kind of node is asked once."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ANSWER_SECONDS = 30.0
"""How long the nodes get to say; what has not answered by then counts as unknown."""

_LOOK_SECONDS = 0.5


def smallest_gpu_mib(over: threading.Event | None = None) -> float | None:
    """Memory of the smallest GPU of the cluster in MiB; ``None`` where there is none, or no node can say.

    Asking takes no GPU and starts nothing on one. What has not answered when ``over`` is set is not waited for.
    """
    ask = ray.remote(num_cpus=0)(_smallest_here)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote()
        for node in _one_of_each_kind()
    ]
    ready: list[ray.ObjectRef[float]] = []
    given_up = time.monotonic() + ANSWER_SECONDS
    while len(ready) < len(asked) and time.monotonic() < given_up and not (over and over.is_set()):
        ready, _ = ray.wait(asked, num_returns=len(asked), timeout=_LOOK_SECONDS)
    said: list[float] = []
    for answer in ready:
        try:
            said.append(ray.get(answer))
        except ray.exceptions.RayError:  # the node is going; its kind will be asked again when another comes
            continue
    return min((mebibytes for mebibytes in said if mebibytes), default=None)


def _one_of_each_kind() -> list[str]:
    """Node ids; nodes with the same kind and number of GPUs and as many CPUs count as the same."""
    kinds: dict[Hashable, str] = {}
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and has.get("GPU"):
            kind = frozenset(name for name in has if name.startswith("accelerator_type:"))
            kinds.setdefault((kind, has["GPU"], has.get("CPU", 0.0)), node["NodeID"])
    return list(kinds.values())


def _smallest_here() -> float:
    from orchestrator.util.machine import local_gpus

    return min((gpu.total for gpu in local_gpus()), default=0) / 2**20
