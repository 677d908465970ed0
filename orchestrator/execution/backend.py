"""Where a run executes its tasks and cells: in this process, or on Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.local import run_cells_locally
from orchestrator.execution.task_graph import GraphTask, run_graph_locally, run_graph_on_ray
from orchestrator.planning.packing import Packing

CELL_ATTEMPTS = 3
"""How often a cell is started whose worker process dies. A cell whose method raises is not started again."""


@dataclass(frozen=True)
class Backend:
    """The functions that execute tasks and cells.

    Attributes:
        gpus: GPUs that there are or can be.
        slots: how many of these cells can run at a time.
        run_graph: runs a graph of tasks, yielding events.
        run_cells: runs cells, calling a listener with every event. Raises ``RunStopped`` when the store cannot be
            used.
    """

    gpus: float
    slots: Callable[[Sequence[Cell]], int]
    run_graph: Callable[[Mapping[str, GraphTask]], Iterator[TaskEvent]]
    run_cells: Callable[[Sequence[Cell], Callable[[CellEvent], None]], None]


def local_backend(settings: RunSettings) -> Backend:
    """Execute in this process, one cell at a time."""
    return Backend(
        gpus=0.0,
        slots=lambda cells: 1,
        run_graph=run_graph_locally,
        run_cells=lambda cells, listener: run_cells_locally(cells, settings, on_event=listener),
    )


@contextlib.contextmanager
def ray_backend(settings: RunSettings, address: str | None, packing: Packing, cell_limit: float) -> Iterator[Backend]:
    """Execute on Ray, connected for the block.

    Args:
        settings: how cells run.
        address: see :func:`orchestrator.execution.cluster.connect`.
        packing: computes what a cell requests; learns of cells that ran out of GPU memory.
        cell_limit: seconds after which a cell's worker is ended; 0 for no limit.
    """
    from orchestrator.execution.cluster import connect
    from orchestrator.execution.tune.capacity import ClusterCapacity
    from orchestrator.execution.tune.driver import run_cells

    # Threads are set before the arithmetic libraries load: sums depend on their number.
    worker_env = {
        "OMP_NUM_THREADS": str(settings.threads),
        "MKL_NUM_THREADS": str(settings.threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    with connect(address, worker_env=worker_env) as limits, ClusterCapacity(limits, packing, settings) as capacity:
        yield Backend(
            gpus=capacity.gpus,
            slots=capacity.slots,
            run_graph=run_graph_on_ray,
            run_cells=lambda cells, listener: run_cells(
                cells,
                settings,
                resources=capacity.request,
                capacity=capacity.size,
                on_gpu_oom=packing.outgrew,
                max_attempts=CELL_ATTEMPTS,
                cell_limit=cell_limit,
                on_event=listener,
            ),
        )
