"""What a cluster that scales may grow to.

Ray's autoscaler keeps that to itself: in a cluster that ``ray up`` has made, nobody fills in what Ray has for it
(``state.get_max_resources_from_cluster_config``). So the head is asked, where the autoscaler's process names its
configuration. Nothing here imports Ray; :func:`growth_here` runs on the head.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

CONFIGURATION, CONTROL = "--autoscaling-config=", "--gcs-address="


@dataclass(frozen=True)
class Kind:
    """A kind of machine that may come.

    Attributes:
        most: how many of it at most.
        cpus, gpus: of one.
    """

    most: int
    cpus: float
    gpus: float


@dataclass(frozen=True)
class Growth:
    """The machines that may come by themselves, besides the head.

    Attributes:
        machines: how many at most, of all kinds together.
        kinds: those whose size is known.
    """

    machines: int = 0
    kinds: tuple[Kind, ...] = ()

    @property
    def cpus(self) -> float:
        """CPUs of all of them, when those with the most come first."""
        return self._most([(kind.cpus, kind.most) for kind in self.kinds])

    @property
    def gpus(self) -> float:
        """GPUs of all of them, when those with the most come first."""
        return self._most([(kind.gpus, kind.most) for kind in self.kinds])

    @property
    def largest(self) -> tuple[float, float]:
        """(cpus, gpus) of the largest single one."""
        coming = [kind for kind in self.kinds if kind.most]
        return max((kind.cpus for kind in coming), default=0.0), max((kind.gpus for kind in coming), default=0.0)

    def _most(self, sizes: Sequence[tuple[float, int]]) -> float:
        places, total = self.machines, 0.0
        for size, most in sorted(sizes, reverse=True):
            taken = min(places, most)
            places, total = places - taken, total + taken * size
        return total


def growth_here(gcs_address: str) -> Growth:
    """What the autoscaler of the cluster at ``gcs_address`` may start; none where none runs on this machine.

    Machines of a cluster of one's own (``provider: local``) have no size in it; they are there, or cannot come.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
            options = process.cmdline()
            if CONTROL + gcs_address not in options:
                continue
            for option in options:
                if option.startswith(CONFIGURATION):
                    return growth_of(yaml.safe_load(Path(option.removeprefix(CONFIGURATION)).read_text()))
    return Growth()


def growth_of(configuration: dict[str, Any]) -> Growth:
    """The same from the autoscaler's configuration, as ``ray up`` has completed it."""
    head = configuration.get("head_node_type")
    kinds = tuple(
        Kind(int(kind.get("max_workers", 0)), float(size.get("CPU", 0)), float(size.get("GPU", 0)))
        for name, kind in configuration["available_node_types"].items()
        if (size := kind.get("resources") or {}) and name != head
    )
    return Growth(int(configuration.get("max_workers", 0)), kinds)
