"""How far a cluster can grow: the limits in the configuration of Ray's autoscaler.

Ray has a call for it (``state.get_max_resources_from_cluster_config``), but ``ray up`` does not fill in the data behind
it. So the head reads the file that the autoscaler's command line names. Nothing here imports Ray.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

CONFIG_OPTION, ADDRESS_OPTION = "--autoscaling-config=", "--gcs-address="


@dataclass(frozen=True)
class NodeType:
    """A type of node that the autoscaler can start.

    Attributes:
        max_count: at most so many nodes of it.
        cpus, gpus: of one node.
    """

    max_count: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class AutoscalerLimits:
    """The nodes that the autoscaler can start besides the head.

    Attributes:
        max_nodes: at most so many nodes, of all types together.
        node_types: the types whose size is known.
    """

    max_nodes: int = 0
    node_types: tuple[NodeType, ...] = ()

    @property
    def cpus(self) -> float:
        """CPUs of all of them, when the nodes with the most CPUs are started first."""
        return self._total([(node.cpus, node.max_count) for node in self.node_types])

    @property
    def gpus(self) -> float:
        """GPUs of all of them, when the nodes with the most GPUs are started first."""
        return self._total([(node.gpus, node.max_count) for node in self.node_types])

    def _total(self, sizes: list[tuple[float, int]]) -> float:
        nodes_left, total = self.max_nodes, 0.0
        for size, max_count in sorted(sizes, reverse=True):
            count = min(nodes_left, max_count)
            nodes_left, total = nodes_left - count, total + count * size
        return total


def read_autoscaler_limits(gcs_address: str) -> AutoscalerLimits:
    """The limits of the cluster at ``gcs_address``, read on its head; no nodes where no autoscaler runs there.

    The nodes of a cluster with ``provider: local`` have no size in the file: they are there or cannot come.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
            options = process.cmdline()
            if ADDRESS_OPTION + gcs_address not in options:
                continue
            for option in options:
                if option.startswith(CONFIG_OPTION):
                    return limits_from_config(yaml.safe_load(Path(option.removeprefix(CONFIG_OPTION)).read_text()))
    return AutoscalerLimits()


def limits_from_config(config: dict[str, Any]) -> AutoscalerLimits:
    """The limits in the autoscaler's configuration, as ``ray up`` has completed it."""
    head = config.get("head_node_type")
    node_types = tuple(
        NodeType(int(node.get("max_workers", 0)), float(size.get("CPU", 0)), float(size.get("GPU", 0)))
        for name, node in config["available_node_types"].items()
        if (size := node.get("resources") or {}) and name != head
    )
    return AutoscalerLimits(int(config.get("max_workers", 0)), node_types)
