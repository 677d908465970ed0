"""Where a run executes its tasks and cells: in this process, or on Ray."""

import contextlib
import pkgutil
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, OnCellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.task_graph import GraphTask, run_graph_locally, run_graph_on_ray
from orchestrator.planning.packing import Packing
from orchestrator.store.errors import RunStopped
from orchestrator.util.errors import one_line
from orchestrator.util.machine import usable_processors

RUNNER = "orchestrator.cells.trial:run_and_record"
"""The function that runs one cell and records its outcome. Workers import it by this name, so that the driver need not
import the modules that only workers use."""

CELL_ATTEMPTS = 3
"""How often a cell is started if its worker process dies. A cell whose method raises is not started again."""


class RunCells(Protocol):
    """Runs cells and reports every event to a listener. A cell that fails does not stop the others.

    The listener may return some of the cells in the argument ``later``. These cells then run after the waiting cells.

    Raises ``RunStopped`` when the store cannot be used.
    """

    def __call__(
        self, cells: Sequence[Cell], settings: RunSettings, on_event: OnCellEvent, *, later: Sequence[Cell] = ()
    ) -> None: ...


@dataclass(frozen=True)
class Backend:
    """How work is executed: ``run_graph`` runs a graph of tasks and yields events, ``run_cells`` runs cells."""

    run_graph: Callable[[Mapping[str, GraphTask]], Iterator[TaskEvent]]
    run_cells: RunCells


def run_cells_locally(
    cells: Sequence[Cell],
    settings: RunSettings,
    on_event: OnCellEvent,
    *,
    later: Sequence[Cell] = (),
    runner: str = RUNNER,
) -> None:
    """Run cells in this process, in the order given; see :class:`RunCells`."""
    run: Callable[[Cell, RunSettings], CellEvent] = pkgutil.resolve_name(runner)
    waiting = deque(cells)
    while waiting:
        cell = waiting.popleft()
        on_event(CellEvent(cell, "started"))
        try:
            event = run(cell, settings)
        except (Exception, SystemExit) as error:  # a method's code may call ``sys.exit``, as argparse does
            event = CellEvent(cell, "failed", error=one_line(error), traceback=traceback.format_exc(), recorded=False)
        if event.problem == "store":
            raise RunStopped(settings.store_url, event.error)
        waiting.extend(on_event(event) or ())


LOCAL = Backend(run_graph_locally, run_cells_locally)
"""Runs one task or cell at a time in this process: for ``--local``, tests and debuggers."""


@contextlib.contextmanager
def ray_backend(
    settings: RunSettings,
    address: str | None,
    packing: Packing,
    cell_limit: float,
    first: Cell,
    warn: Callable[[str], None],
) -> Iterator[Backend]:
    """Return a backend on Ray. The connection lasts as long as the ``with`` block.

    ``address`` and ``cell_limit`` (seconds) are those of :class:`~orchestrator.execution.run.RunOptions`. ``packing``
    computes the CPUs and the GPU share that a cell requests. For this, ``packing`` learns of GPUs that join, and of
    cells that ran out of GPU memory. ``warn`` is called if, for a minute, the cluster has no room for ``first``.
    """
    from orchestrator.execution.cluster import connect

    # Ray sets these variables before a worker loads its arithmetic libraries, which read them only once. The number of
    # threads must be the same everywhere, because the bits of a sum depend on it.
    worker_env = {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(settings.threads)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    cpus = settings.threads if settings.threads > usable_processors() else None
    with connect(address, cpus=cpus, worker_env=worker_env) as limits:
        # These modules import Ray, so its environment must be set before.
        from orchestrator.execution.tune.capacity import cluster_capacity, told_of_wait
        from orchestrator.execution.tune.driver import run_cells

        request = partial(packing.request, threads=settings.threads)
        on_ray = partial(
            run_cells,
            request=request,
            capacity=cluster_capacity(limits, packing, settings.device),
            on_gpu_oom=packing.learn_oom,
            work=packing.costs.gflops_of,
            max_attempts=CELL_ATTEMPTS,
            cell_limit=cell_limit,
            runner=RUNNER,
        )
        with told_of_wait(request(first), warn) if address else contextlib.nullcontext():
            yield Backend(run_graph_on_ray, on_ray)
