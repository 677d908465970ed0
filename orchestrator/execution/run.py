"""One grid from plan to report: build what is missing, run what is missing, track it, report it.

Everything finished is in the store the moment it is finished, so stopping at any point loses nothing, and the same
command goes on from there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.artifacts.build import build
from orchestrator.artifacts.kinds import ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.cells.trial import record_failure
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.local import run_cells_locally
from orchestrator.execution.task_graph import GraphTask, run_graph_locally
from orchestrator.planning.packing import Packing, uses_gpus
from orchestrator.planning.plan import Plan
from orchestrator.store import CorruptArtifact, Store
from orchestrator.store.failure_kind import StoreGone, Unwritable, patiently, problem_of, reason
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.execution.tune.capacity import Room

CELL_ATTEMPTS = 3
"""How often a cell is started again whose worker process died; what a method raises is not retried."""

LOG_TAIL = 20_000
"""Characters of a dead worker's output that are kept with the failure."""

CELL_LIMIT_SECONDS = 6 * 3600.0
"""How long a cell may run unless told otherwise; the longest of the shipped grids take an hour on one GPU."""


@dataclass(frozen=True)
class RunOptions:
    """How a grid is run; none of it changes a number.

    Attributes:
        local: in this process, without Ray.
        address: a running Ray cluster to join; ``None`` starts one on this machine.
        retry_failed: run cells again that are on record as failed.
        disk_budget: bytes that the artifacts to build may take, ``None`` for what is free.
        cell_limit: seconds after which a cell's worker is ended and the cell counts as failed; 0 for no limit. In this
            process there is none.
    """

    local: bool = False
    address: str | None = None
    retry_failed: bool = False
    disk_budget: int | None = None
    cell_limit: float = CELL_LIMIT_SECONDS


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


@dataclass(frozen=True)
class Doom:
    """Why an artifact could not be built, or a cell not run for want of one.

    Attributes:
        why: one line.
        again: the same command tries it again, as nobody was at fault (:class:`~orchestrator.store.results.Failure`).
    """

    why: str
    again: bool


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

    Raises :class:`~orchestrator.store.failure_kind.Unwritable` when the store cannot be used any more: nothing is
    recorded then that is not true.
    """
    store = Store(settings.store_url)
    store.remove_failures(cell.id for cell in plan.todo)
    with contextlib.ExitStack() as stack:
        room: Room | None = None
        if not options.local:
            from orchestrator.execution.cluster import Cluster
            from orchestrator.execution.tune.capacity import Room

            cluster = stack.enter_context(Cluster.connect(options.address, worker_env=_worker_env(settings)))
            room = stack.enter_context(Room(cluster.describe(), Packing(catalog, plan.done), settings))
        doomed = _build(plan.missing, settings, options, room.gpus if room else 0.0, on_task, store)
        cells, blocked = _ready(plan, catalog, doomed)
        for cell, doom in blocked.items():
            with _told_apart(store):
                record_failure(store, cell.id, doom.why, again=doom.again)
            on_event(CellEvent(cell, "failed", error=doom.why))
        failed = [cell.id for cell in blocked]

        def record(event: CellEvent) -> None:
            if room:
                room.packing.learn(event.cell, event.gpu_mib)
            if event.kind == "failed":
                failed.append(event.cell.id)
                if not event.recorded:
                    story = f"{event.traceback}\n{_last_words(event.log)}"
                    with _told_apart(store):
                        record_failure(store, event.cell.id, event.error, story, event.attempt, again=event.again)
            on_event(event)

        if room is None:
            run_cells_locally(cells, settings, on_event=record)
        else:
            from orchestrator.execution.tune import run_cells

            on_places(room.places(cells))
            run_cells(
                cells,
                settings,
                resources=room.request,
                capacity=room.capacity,
                outgrew=room.packing.outgrew,
                max_attempts=CELL_ATTEMPTS,
                cell_limit=options.cell_limit,
                on_event=record,
            )
    return Ran(len(plan.missing) - len(doomed), len(cells), (*doomed, *failed))


def _build(
    specs: Iterable[ArtifactSpec],
    settings: RunSettings,
    options: RunOptions,
    gpus: float,
    on_task: Callable[[TaskEvent], None],
    store: Store,
) -> dict[str, Doom]:
    """Build artifacts, inputs first; returns the addresses that could not be built, with the reason."""
    missing = {spec.address: spec for spec in specs}
    on_cpu = replace(settings, device="cpu")
    tasks = {
        address: GraphTask(
            build_in,
            (spec, settings if spec.gpu_share else on_cpu),
            frozenset(upstream.address for upstream in spec.inputs) & missing.keys(),
            cpus=settings.threads,
            gpus=spec.gpu_share if uses_gpus(settings, gpus) else 0.0,
        )
        for address, spec in missing.items()
    }
    store.remove_failures(tasks)
    doomed: dict[str, Doom] = {}
    for event in _run_graph(tasks, options):
        if event.kind in ("failed", "skipped"):
            kind, _, why = event.error.partition(": ")
            if kind == StoreGone.__name__:
                raise Unwritable(store.url, why)
            root = doomed.get(event.failed_dependency)
            again = root.again if root else event.again or kind == CorruptArtifact.__name__
            doomed[event.key] = Doom(event.error, again)
            with _told_apart(store):
                record_failure(store, event.key, event.error, event.traceback)
        on_task(event)
    return doomed


def build_in(spec: ArtifactSpec, settings: RunSettings) -> str:
    """Build one artifact; a store that cannot be used raises ``StoreGone``, in whatever words the builder met it."""
    try:
        return patiently("://" not in settings.store_url, lambda: build(spec, settings))
    except Exception as error:
        if problem_of(error) == "store":
            raise StoreGone(reason(error)) from error
        raise


@contextlib.contextmanager
def _told_apart(store: Store) -> Iterator[None]:
    """Inside, a failure record that cannot be written is the store's trouble, and ends the run as such."""
    try:
        yield
    except (OSError, UserError) as error:
        raise Unwritable(store.url, reason(error)) from error


def _run_graph(tasks: Mapping[str, GraphTask], options: RunOptions) -> Iterator[TaskEvent]:
    if options.local:
        return run_graph_locally(tasks)
    from orchestrator.execution.cluster import run_graph

    return run_graph(tasks)


def _ready(plan: Plan, catalog: Catalog, doomed: Mapping[str, Doom]) -> tuple[list[Cell], dict[Cell, Doom]]:
    """The open cells whose artifacts are all there, and the others with the reason why not."""
    if not doomed:
        return list(plan.todo), {}
    from orchestrator.artifacts.requirements import required_artifacts

    ready, blocked = [], {}
    for cell in plan.todo:
        specs = required_artifacts([cell], plan.cells, catalog, plan.sources)
        broken = [spec.address for spec in specs if spec.address in doomed]
        if broken:
            doom = doomed[broken[0]]
            blocked[cell] = replace(doom, why=f"needs {broken[0]}, which could not be built: {doom.why}")
        else:
            ready.append(cell)
    return ready, blocked


def _last_words(log: str) -> str:
    """The end of a dead worker's output, which Ray removes with the instance."""
    try:
        return Path(log).read_text(errors="replace")[-LOG_TAIL:] if log else ""
    except OSError:
        return ""


def _worker_env(settings: RunSettings) -> dict[str, str]:
    """Threads are fixed before the arithmetic libraries load: sums depend on how they are split."""
    threads = str(settings.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
