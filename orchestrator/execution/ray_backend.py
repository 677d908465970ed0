"""Run tasks and cells on Ray: on an instance of this process's own, or on a cluster it joins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.cluster import Cluster
from orchestrator.execution.ray_graph import run_graph
from orchestrator.execution.task_graph import GraphTask
from orchestrator.execution.tune import run_cells
from orchestrator.execution.tune.capacity import ClusterCapacity
from orchestrator.planning.packing import Packing

CELL_ATTEMPTS = 3
"""How often a cell is started whose worker process dies. A cell whose method raises is not started again."""


class RayBackend:
    """Runs tasks and cells on Ray; see :class:`orchestrator.execution.run.Backend`.

    Args:
        capacity: the cluster's size, and what a cell asks of it.
        settings: how cells run.
        cell_limit: seconds after which a cell's worker is ended; 0 for no limit.
    """

    def __init__(self, capacity: ClusterCapacity, settings: RunSettings, cell_limit: float) -> None:
        self._capacity, self._settings, self._cell_limit = capacity, settings, cell_limit

    @property
    def gpus(self) -> float:
        """GPUs that the cluster has or can start."""
        return self._capacity.gpus

    def slots(self, cells: Iterable[Cell]) -> int:
        """How many of these cells can run at a time."""
        return self._capacity.slots(cells)

    def run_graph(self, tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
        """Run a graph as Ray tasks, yielding events."""
        return run_graph(tasks)

    def run_cells(self, cells: Sequence[Cell], on_event: Callable[[CellEvent], None]) -> None:
        """Run cells as trials of Ray Tune; the memory that each takes is learned for the cells that follow."""
        packing = self._capacity.packing

        def learn(event: CellEvent) -> None:
            packing.learn(event.cell, event.gpu_mib)
            on_event(event)

        run_cells(
            cells,
            self._settings,
            resources=self._capacity.request,
            capacity=self._capacity.size,
            on_gpu_oom=packing.outgrew,
            max_attempts=CELL_ATTEMPTS,
            cell_limit=self._cell_limit,
            on_event=learn,
        )


@contextlib.contextmanager
def connect_to_ray(
    address: str | None, packing: Packing, settings: RunSettings, cell_limit: float
) -> Iterator[RayBackend]:
    """Connect to Ray for the block; see :meth:`orchestrator.execution.cluster.Cluster.connect`."""
    with (
        Cluster.connect(address, worker_env=_worker_env(settings)) as cluster,
        ClusterCapacity(cluster.describe(), packing, settings) as capacity,
    ):
        yield RayBackend(capacity, settings, cell_limit)


def _worker_env(settings: RunSettings) -> dict[str, str]:
    """Environment of the workers. Threads are set before the arithmetic libraries load: sums depend on their number."""
    threads = str(settings.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
