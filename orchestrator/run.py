"""One grid from plan to report: build what is missing, run what is missing, track it, report it.

Everything finished is in the store the moment it is finished, so stopping at any point loses nothing, and the same
command goes on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog import Catalog
from orchestrator.cell import Cell
from orchestrator.errors import UserError
from orchestrator.events import CellEvent, Resources
from orchestrator.graph import GraphTask, TaskEvent, run_graph_locally
from orchestrator.local import run_cells_locally
from orchestrator.locks import Held, held
from orchestrator.plan import Plan, source_models
from orchestrator.settings import RunSettings
from orchestrator.stages.artifacts import Need
from orchestrator.stages.build import build
from orchestrator.store import Store
from orchestrator.trial import record_failure

if TYPE_CHECKING:
    from orchestrator.cluster import ClusterInfo

CELL_ATTEMPTS = 3
"""How often a cell is started again whose worker process died; what a method raises is not retried."""

LOG_TAIL = 20_000
"""Characters of a dead worker's output that are kept with the failure."""

GPU_SHARE = 0.25
"""Share of a GPU for a cell that only reads cached features; one that trains the tower gets a whole GPU."""


@dataclass(frozen=True)
class RunOptions:
    """How a grid is run; none of it changes a number.

    Attributes:
        local: in this process, without Ray.
        address: a running Ray cluster to join; ``None`` starts one on this machine.
        retry_failed: run cells again that are on record as failed.
        disk_budget: bytes that the artifacts to build may take, ``None`` for what is free.
    """

    local: bool = False
    address: str | None = None
    retry_failed: bool = False
    disk_budget: int | None = None


@dataclass(frozen=True)
class Ran:
    """What a run did.

    Attributes:
        built, trials: artifacts built and cells started in this run.
        failed: ids of artifacts and cells that failed in this run.
    """

    built: int = 0
    trials: int = 0
    failed: tuple[str, ...] = ()


def execute(
    plan: Plan,
    catalog: Catalog,
    settings: RunSettings,
    options: RunOptions,
    *,
    on_task: Callable[[TaskEvent], None],
    on_event: Callable[[CellEvent], None],
    on_places: Callable[[int], None] = lambda places: None,
) -> Ran:
    """Build the plan's missing artifacts, then run its open cells, telling the listeners what happens.

    A cell's result or failure is in the store before ``on_event`` hears of it. Failures do not stop the others.
    ``on_places`` hears how many cells can be under way at a time, before the first one starts.
    """
    data_root = Path(settings.data_root) if settings.data_root else None
    store = Store(settings.store_url)
    for cell in plan.todo:
        store.forget_failure(cell.id)
    with contextlib.ExitStack() as stack:
        gpus = 0.0
        if not options.local:
            from orchestrator.cluster import Cluster

            cluster = stack.enter_context(Cluster.connect(options.address, worker_env=_worker_env(settings)))
            info = cluster.describe()
            gpus = info.gpus
        doomed = _build(plan.missing, settings, options, gpus, on_task, store)
        cells, blocked = _ready(plan, catalog, data_root, doomed)
        for cell, why in blocked.items():
            record_failure(store, cell.id, why)
            on_event(CellEvent(cell, "failed", error=why))
        failed = [cell.id for cell in blocked]

        def record(event: CellEvent) -> None:
            if event.kind == "failed":
                failed.append(event.cell.id)
                if not event.recorded:
                    record_failure(store, event.cell.id, event.error, f"{event.traceback}\n{_last_words(event.log)}")
            on_event(event)

        if options.local:
            run_cells_locally(cells, settings, on_event=record)
        else:
            from orchestrator.fanout import run_cells

            requests = [resources_of(cell, settings, gpus) for cell in cells]
            on_places(slots := slots_of(info, requests))
            run_cells(
                cells,
                settings,
                resources=lambda cell: resources_of(cell, settings, gpus),
                slots=slots,
                max_attempts=CELL_ATTEMPTS,
                on_event=record,
            )
    return Ran(len(plan.missing) - len(doomed), len(cells), (*doomed, *failed))


def _build(
    needs: Iterable[Need],
    settings: RunSettings,
    options: RunOptions,
    gpus: float,
    on_task: Callable[[TaskEvent], None],
    store: Store,
) -> dict[str, str]:
    """Build artifacts, inputs first; returns the addresses that could not be built, with the reason."""
    open_needs = {need.address: need for need in needs}
    share = GPU_SHARE if gpus else 0.0
    tasks = {
        address: GraphTask(
            build,
            (need, settings),
            frozenset(upstream.address for upstream in need.inputs) & open_needs.keys(),
            cpus=settings.threads,
            gpus=share,
        )
        for address, need in open_needs.items()
    }
    for address in tasks:
        store.forget_failure(address)
    doomed: dict[str, str] = {}
    for event in _run_graph(tasks, options):
        if event.kind in ("failed", "skipped"):
            doomed[event.key] = event.error
            record_failure(store, event.key, event.error, event.traceback)
        on_task(event)
    return doomed


def _run_graph(tasks: Mapping[str, GraphTask], options: RunOptions) -> Iterator[TaskEvent]:
    if options.local:
        return run_graph_locally(tasks)
    from orchestrator.cluster import run_graph

    return run_graph(tasks)


def _ready(
    plan: Plan, catalog: Catalog, data_root: Path | None, doomed: Mapping[str, str]
) -> tuple[list[Cell], dict[Cell, str]]:
    """The open cells whose artifacts are all there, and the others with the reason why not."""
    if not doomed:
        return list(plan.todo), {}
    from orchestrator.stages.needs import needs_of

    models = source_models(plan.grid, catalog, data_root)
    ready, blocked = [], {}
    for cell in plan.todo:
        needs = needs_of([cell], plan.cells, catalog, models)
        broken = [need.address for need in needs if need.address in doomed]
        if broken:
            blocked[cell] = f"needs {broken[0]}, which could not be built: {doomed[broken[0]]}"
        else:
            ready.append(cell)
    return ready, blocked


def _last_words(log: str) -> str:
    """The end of a dead worker's output, which Ray removes with the instance."""
    try:
        return Path(log).read_text(errors="replace")[-LOG_TAIL:] if log else ""
    except OSError:
        return ""


def resources_of(cell: Cell, settings: RunSettings, gpus: float) -> Resources:
    """What a cell occupies on a cluster that has so many GPUs."""
    from bolt.methods import METHODS

    if not gpus:
        return Resources(cpus=settings.threads)
    trains = METHODS[cell.method.name].trains_tower
    return Resources(cpus=settings.threads, gpus=1.0 if trains else GPU_SHARE)


def slots_of(info: ClusterInfo, requests: Sequence[Resources]) -> int:
    """How many cells can be under way at a time when all ask for the least that any asks for."""
    if not requests:
        return 1
    slots = info.cpus / max(min(request.cpus for request in requests), 0.01)
    least_gpu = min(request.gpus for request in requests)
    if least_gpu:
        slots = min(slots, info.gpus / least_gpu)
    return max(1, int(slots))


def _worker_env(settings: RunSettings) -> dict[str, str]:
    """Threads are fixed before the arithmetic libraries load: sums depend on how they are split."""
    threads = str(settings.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


@contextlib.contextmanager
def only_driver(store: Store, grid: str) -> Iterator[None]:
    """Hold the grid's lock, so that two drivers do not run one grid in one store at a time.

    The lock dies with its process. Raises ``UserError`` when another process holds it.
    """
    if not store.files.is_local:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(held(store.files.local_path(f"locks/{grid}.lock")))
        except Held as process:
            raise UserError(
                f"grid {grid} is being run in {store.url} by process {process}",
                hint="`python -m orchestrator status` shows how far it is",
            ) from None
        yield
