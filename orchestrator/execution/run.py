"""Run a plan, on Ray or in this process: build its missing artifacts, run its open cells, and return the outcomes.

Everything that finishes is in the store at once. So a run can be stopped at any time without loss, and the same command
continues it.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console

from orchestrator.artifacts.spec import ArtifactCache, ArtifactSpec, build
from orchestrator.cells.trial import record_failure
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution.backend import LOCAL, Backend, ray_backend
from orchestrator.execution.task_graph import GraphTask
from orchestrator.planning.packing import Packing
from orchestrator.planning.plan import Plan, next_block
from orchestrator.progress.counter import ProgressCounter
from orchestrator.store import Store
from orchestrator.store.errors import RunStopped, retry_store, store_error
from orchestrator.util.errors import UserError
from orchestrator.util.interrupt import raise_if_interrupted
from orchestrator.util.machine import local_gpus

LOG_TAIL = 20_000
"""Characters of a dead worker's output that are kept with the failure."""

CELL_LIMIT_SECONDS = 6 * 3600.0
"""Default time limit of a cell. The longest cell of the shipped grids takes an hour on one GPU."""


@dataclass(frozen=True)
class RunOptions:
    """How a grid is run. No option changes a result.

    Attributes:
        local: whether to run in this process, without Ray.
        address: a running Ray cluster to join; ``None`` starts an instance on this machine.
        retry_failed: whether to run cells again that have a failure on record.
        disk_budget: bytes that the artifacts to build may take; ``None`` for the free space.
        raced: whether to stop measuring methods that cannot be the best any more.
        cell_limit: seconds after which a cell's worker is ended and the cell counts as failed; 0 for no limit. With
            ``local``, there is no limit.
    """

    local: bool = False
    address: str | None = None
    retry_failed: bool = False
    disk_budget: int | None = None
    cell_limit: float = CELL_LIMIT_SECONDS
    raced: bool = False


def check_ray() -> None:
    """Raise ``UserError`` if Ray is not installed."""
    if find_spec("ray") is None:
        what = "grids run on Ray, which is not installed"
        raise UserError(what, hint="pip install 'bolt-orchestrator[engine]' adds Ray; --local runs without Ray")


def check_precisions(plan: Plan, gpus: float) -> None:
    """Raise ``UserError`` before anything runs if a cell asks for ``tf32`` and the run uses no GPU."""
    asking = [cell for cell in plan.todo if cell.backbone.precision == "tf32"]
    if asking and not gpus:
        what = f"{asking[0].id} asks for tf32, a number format of GPUs, and this run uses no GPU"
        hint = "leave precision out for the default of each device, or take float32 or bfloat16"
        raise UserError(what, where="precision", hint=hint)


def execute(
    plan: Plan,
    settings: RunSettings,
    options: RunOptions,
    counter: ProgressCounter,
    on_finished: Callable[[str], None],
    warn: Callable[[str], None] = print,
) -> tuple[Plan, int, int]:
    """Build the plan's missing artifacts, then run its open cells.

    An artifact or a cell that fails does not stop the run. In a race, only the cells that the next decisions need are
    run at first. After each decision, the cells that the next decision needs are added, until the race needs no more.

    Args:
        counter: counts the events. Its ``phase`` is set to what the run waits for.
        on_finished: called with the id of every finished cell; its result is in the store by then.
        warn: called in another thread if a joined cluster has had no room for the first worker for a minute.

    Returns the plan with the outcomes of all cells, how many artifacts were built, and how many cells were started.

    Raises ``UserError`` when a cell asks for a precision that the run has no GPU for, and
    :class:`~orchestrator.store.errors.RunStopped` when the store cannot be used any more. Cells and artifacts that
    are under way at that moment are not recorded as failed.
    """
    store = Store(settings.store_url)
    costs = plan.costs
    built, started = 0, 0
    tried, ended = set[str](), set[str]()  # ids of cells
    # If a remote store does not answer, try again for a while: an error would end the run, and cells may be running.
    retry = partial(retry_store, store.files.is_local)

    def wait_for(phase: str) -> None:
        if not options.local:
            counter.phase = phase

    def record(event: CellEvent) -> None:
        raise_if_interrupted()
        costs.learn_memory(event.cell, event.gpu_mib)
        if event.kind == "failed" and not event.recorded:
            trace = f"{event.traceback}\n{_tail(event.log)}".strip()
            _record_failure(store, event.cell.id, event.error, trace, event.attempt, retryable=event.retryable)
        counter.on_event(event)
        if event.kind == "finished":
            on_finished(event.cell.id)
        if event.kind != "started" and not event.retryable:
            ended.add(event.cell.id)

    def on_event(event: CellEvent) -> list[Cell]:
        """Record an event. Return the cells that run next if the event lets a race take a decision; otherwise none.

        A race can take a decision when all cells that the decision needs have ended.
        """
        nonlocal plan, started
        record(event)
        if event.kind == "started" or event.retryable or not plan.can_decide(ended):
            return []
        plan = retry(partial(next_block, plan, store, tried))
        ready = plan.ready()
        retry(partial(store.remove_failures, [cell.id for cell in ready]))
        counter.extend(plan, ready)
        tried.update(cell.id for cell in ready)
        started += len(ready)
        return ready

    # On Ray, the GPUs of the cluster are counted after connecting.
    gpus = len(local_gpus()) if options.local and settings.device != "cpu" else 0
    packing = Packing(plan.catalog, costs, gpus=gpus)
    on_ray = ray_backend(settings, options.address, packing, options.cell_limit, plan.todo[0], warn)
    wait_for("joining the Ray cluster" if options.address else "starting Ray")
    with nullcontext(LOCAL) if options.local else on_ray as backend:
        wait_for("starting Ray workers")
        check_precisions(plan, packing.gpus)
        while plan.todo:
            store.remove_failures([cell.id for cell in plan.todo] + [spec.address for spec in plan.missing])
            failed = build_artifacts(plan.missing, settings, store, counter.on_event, backend, packing.share_of_build)
            blocked = set[Cell]()  # the cells that need an artifact which could not be built
            for cell in plan.todo if failed else ():
                if address := next((spec.address for spec in plan.artifacts_of([cell]) if spec.address in failed), ""):
                    cause = failed[address]
                    reason = f"needs {cause.key}, which could not be built: {cause.error}"
                    record(CellEvent(cell, "failed", error=reason, retryable=cause.retryable, recorded=False))
                    blocked.add(cell)
            built, started = built + len(plan.missing) - len(failed), started + len(plan.todo) - len(blocked)
            tried.update(cell.id for cell in plan.todo)
            cells = [cell for cell in plan.todo if cell not in blocked]
            wait_for("starting Ray workers for the cells")
            backend.run_cells(cells, settings, on_event, later=[cell for cell in plan.open if cell.id not in tried])
            plan = retry(partial(next_block, plan, store, tried))
            counter.extend(plan, plan.todo, plan.build_gflops)
    return plan, built, started


def build_artifacts(
    specs: Sequence[ArtifactSpec],
    settings: RunSettings,
    store: Store,
    on_event: Callable[[TaskEvent], None],
    backend: Backend = LOCAL,
    share_of: Callable[[ArtifactSpec], float] = lambda spec: 0.0,
) -> dict[str, TaskEvent]:
    """Build artifacts, each after its inputs. Returns address -> last event, for each that could not be built."""
    addresses = {spec.address for spec in specs}
    on_cpu = replace(settings, device="cpu")
    tasks = {
        spec.address: GraphTask(
            build_artifact,
            (spec, settings if spec.gpu_share else on_cpu),
            frozenset(source.address for source in spec.inputs) & addresses,
            cpus=settings.threads,
            gpus=share_of(spec),
        )
        for spec in specs
    }
    failed: dict[str, TaskEvent] = {}
    for event in backend.run_graph(tasks):
        raise_if_interrupted()
        if event.problem == "store":
            raise RunStopped(store.url, event.error)
        if event.kind in ("failed", "skipped"):
            failed[event.key] = replace(event, retryable=failed.get(event.failed_dependency, event).retryable)
            _record_failure(store, event.key, event.error, event.traceback)
        on_event(event)
    return failed


def build_missing(specs: Sequence[ArtifactSpec], loaded: ArtifactCache, console: Console, what: str) -> float:
    """Build the artifacts that the store lacks, and return the seconds. The console shows ``what`` and each artifact.

    Raises ``UserError`` if a build fails.
    """
    started, store = time.perf_counter(), loaded.store
    missing = [spec for spec in specs if not store.is_intact(spec.address, spec.identity)]
    titles = {spec.address: spec.title for spec in missing}
    store.remove_failures([*titles])
    with console.status(what) as status:
        failed = build_artifacts(
            missing, loaded.settings, store, lambda event: status.update(f"{what}, {titles[event.key]}")
        )
    for address, event in failed.items():
        raise UserError(f"{titles[address]} could not be built: {event.error}", where=address)
    return time.perf_counter() - started


def build_artifact(spec: ArtifactSpec, settings: RunSettings) -> None:
    """Build one artifact in this process. If a remote store is unavailable, try again a few times."""
    retry_store("://" not in settings.store_url, lambda: build(spec, settings))


def _record_failure(
    store: Store, failed_id: str, error: str, trace: str = "", attempts: int = 1, *, retryable: bool = False
) -> None:
    """Record a failure. Raises ``RunStopped`` when it cannot be written."""
    try:
        record_failure(store, failed_id, error, trace, attempts, retryable=retryable)
    except (OSError, UserError) as error_of_store:
        raise RunStopped(store.url, store_error(error_of_store)) from error_of_store


def _tail(log: str) -> str:
    """Return the last ``LOG_TAIL`` characters of a dead worker's output; empty if its file cannot be read here.

    This text is stored with the failure, because the file is removed when the local Ray instance ends.
    """
    try:
        return Path(log).read_text(errors="replace")[-LOG_TAIL:] if log else ""
    except OSError:
        return ""
