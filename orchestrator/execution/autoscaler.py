"""How far a cluster can grow: the limits in the configuration of Ray's autoscaler.

Ray has a call for it (``state.get_max_resources_from_cluster_config``), but ``ray up`` does not fill in the data behind
it. So the head reads the file that the autoscaler's command line names. Nothing here imports Ray.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
import yaml

from orchestrator.core.events import Resources

CONFIG_OPTION, ADDRESS_OPTION = "--autoscaling-config=", "--gcs-address="


def read_autoscaler_limits(gcs_address: str) -> Resources:
    """CPUs and GPUs of all nodes that the autoscaler of the cluster at ``gcs_address`` can start besides the head.

    Read on its head; no nodes where no autoscaler runs there. The nodes of a cluster with ``provider: local`` have no
    size in the file: they are there or cannot come.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
            options = process.cmdline()
            files = [option.removeprefix(CONFIG_OPTION) for option in options if option.startswith(CONFIG_OPTION)]
            if files and ADDRESS_OPTION + gcs_address in options:
                return limits_from_config(yaml.safe_load(Path(files[0]).read_text()))
    return Resources(0, 0)


def limits_from_config(config: dict[str, Any]) -> Resources:
    """The limits in the autoscaler's configuration, as ``ray up`` has completed it."""
    head = config.get("head_node_type")
    node_types = [node for name, node in config["available_node_types"].items() if name != head]

    def total(resource: str) -> float:
        """The most there can be of a resource: the nodes that have the most of it are started first."""
        sizes = [((node.get("resources") or {}).get(resource, 0), node.get("max_workers", 0)) for node in node_types]
        nodes_left, amount = int(config.get("max_workers", 0)), 0.0
        for size, max_count in sorted(sizes, reverse=True):
            count = min(nodes_left, int(max_count))
            nodes_left, amount = nodes_left - count, amount + count * float(size)
        return amount

    return Resources(total("CPU"), total("GPU"))
