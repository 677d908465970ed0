"""Runs Tune in a thread of its own, passes its events on, and stops it."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty

import ray
from ray import tune
from ray.tune.experiment import Trial

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, OnCellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.execution.health import HEALTH_CHECK_SECONDS, ClusterLost, check_alive
from orchestrator.execution.tune.callback import TuneCallback
from orchestrator.execution.tune.capacity import cluster_size
from orchestrator.execution.tune.cell_queue import CellQueue
from orchestrator.execution.tune.scheduler import NewestFirstScheduler
from orchestrator.execution.tune.worker import CHUNK, Worker
from orchestrator.util.scratch import ScratchFolder

STOP_SECONDS = 60.0
"""How many seconds this process waits, at most, for Tune to stop."""

TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no csv, json and tensorboard files per trial: 10 ms each
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # this module handles Ctrl-C
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # Tune writes few snapshots, because they are never restored
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # no limit by Tune: the queue gives out no more cells than fit
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_cells(
    cells: Sequence[Cell],
    settings: RunSettings,
    on_event: OnCellEvent,
    *,
    later: Sequence[Cell] = (),
    request: Callable[[Cell], Resources],
    max_attempts: int,
    capacity: Callable[[], Resources] = cluster_size,
    on_gpu_oom: Callable[[Cell, float], None] = lambda cell, share: None,
    work: Callable[[Cell], float] = lambda cell: 0.0,
    cell_limit: float = 0.0,
    runner: str,
) -> None:
    """Run cells on the Ray instance this process is connected to, nearly in the order given.

    Args:
        cells: the cells to run. A worker keeps what it has loaded, so neighbours should share backbone and data.
        request: returns the CPUs and GPUs that a cell gets, when it is given to a worker. A worker is reused only for
            cells with the same request.
        on_event: called in the thread that called ``run_cells``, one event at a time. It may return cells of ``later``,
            which then run too.
        later: cells that ``on_event`` may return. The workers are kept for them.
        max_attempts: how often a cell is started if its worker dies or its runner raises. If a whole node is lost,
            the start does not count, but a cell fails when it loses its tenth node. A cell that runs out of GPU memory
            is started once more with a whole GPU. A cell that runs out of main memory is started once more alone on a
            node.
        capacity: returns the CPUs and GPUs that the cluster has or can grow to; by default, those that it has now.
        on_gpu_oom: called with a cell that ran out of GPU memory, and the share of a GPU it had.
        work: returns the number of operations of a cell. Near the end, a waiting cell with many operations runs first.
        cell_limit: seconds after which the worker of a cell is ended and the cell counts as failed; 0 for none.
        runner: the function that runs one cell, as ``module:function``.

    ``request``, ``capacity``, ``work`` and ``on_gpu_oom`` are called in Tune's thread.

    On ``KeyboardInterrupt``, the workers are stopped and the exception goes on; finished cells are in the store. Raises
    :class:`~orchestrator.execution.health.ClusterLost` when the cluster is lost;
    :class:`~orchestrator.store.errors.RunStopped` when the store cannot be used, after the running cells have
    ended; and whatever ``on_event`` raises.
    """
    if not cells:
        return
    os.environ.update(TUNE_ENVIRONMENT)
    for logger in ("ray.tune", "ray.air", "ray.train"):
        logging.getLogger(logger).setLevel(logging.CRITICAL + 1)
    every = [*cells, *later]
    number_of = {cell.id: number for number, cell in enumerate(every)}
    waiting = CellQueue(
        range(len(cells)), lambda number: request(every[number]), capacity, lambda number: work(every[number])
    )
    waiting.more_to_come = bool(later)
    callback = TuneCallback(every, waiting, max_attempts, on_gpu_oom, settings.store_url)
    unfinished = {cell.id for cell in cells}

    def pass_on(event: CellEvent) -> None:
        more = [cell.id for cell in on_event(event) or ()]
        if event.kind != "started":
            unfinished.discard(event.cell.id)
        if more:
            unfinished.update(more)
            waiting.add([number_of[name] for name in more])
        waiting.more_to_come &= bool(unfinished)

    with ScratchFolder("tune") as folder:
        chunks = [ray.put(every[start : start + CHUNK]) for start in range(0, len(every), CHUNK)]
        trainable = tune.with_parameters(Worker, chunks=chunks, settings=settings, runner=runner)
        arguments = (trainable, waiting, callback, str(folder))
        thread = threading.Thread(target=_run_tune, args=arguments, name="tune", daemon=True)
        thread.start()
        try:
            _pass_events_on(callback, thread, pass_on, cell_limit)
        except ClusterLost:
            raise  # Tune's thread may never end, so it is left behind
        except BaseException:
            callback.stop_requested = True
            _stop(callback, thread)
            raise
        callback.stop_requested = True
        thread.join(STOP_SECONDS)
    if callback.error is not None:
        raise callback.error
    if unfinished:
        raise RuntimeError(f"Tune ended before {len(unfinished)} cells had ended, such as {min(unfinished)}")


def _stop(callback: TuneCallback, thread: threading.Thread) -> None:
    """Kill the workers and wait for the end of Tune, unless the cluster is lost.

    The signal that stops this process may have ended the cluster as well. Ray would wait for the cluster for a minute
    and then end this process without a word.
    """
    killing = threading.Thread(target=callback.stop_workers, daemon=True)
    killing.start()
    killing.join(HEALTH_CHECK_SECONDS)
    until = time.monotonic() + STOP_SECONDS
    with contextlib.suppress(ClusterLost):
        while thread.is_alive() and time.monotonic() < until:
            thread.join(HEALTH_CHECK_SECONDS)
            check_alive()


def _pass_events_on(
    callback: TuneCallback, thread: threading.Thread, on_event: Callable[[CellEvent], None], cell_limit: float
) -> None:
    """Pass the callback's events to ``on_event`` until Tune has ended.

    While it waits for an event, it stops cells that exceed ``cell_limit``, and checks the cluster's health.
    """
    while True:
        if cell_limit:
            callback.stop_overdue(cell_limit)
        try:
            event = callback.events.get(timeout=HEALTH_CHECK_SECONDS)
        except Empty:
            check_alive()
            if thread.is_alive():
                continue
            return
        if event is None:
            return
        if event.kind == "failed" and not event.recorded:
            check_alive()  # raises if the cluster is dying: then the cell itself has not failed
        on_event(event)


def _run_tune(trainable: type[tune.Trainable], waiting: CellQueue, callback: TuneCallback, folder: str) -> None:
    """Run Tune. This function has a thread of its own, because Tune can hang if the cluster dies."""
    try:
        tune.run(
            trainable,
            name="cells",
            storage_path=folder,
            num_samples=-1,  # no limit: a cell that is started again is one more trial, and the queue says when to end
            search_alg=waiting,
            scheduler=NewestFirstScheduler(),
            reuse_actors=True,
            max_failures=0,  # the callback decides which cells are started again
            raise_on_failed_trial=False,
            stop=callback,
            callbacks=[callback],
            # By default, Tune saves a checkpoint when a trainable ends. ``Worker`` has none, so that would fail.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            trial_name_creator=_trial_name,
            trial_dirname_creator=_trial_name,
            verbose=0,
        )
    except Exception as error:
        callback.error = error
    finally:
        callback.events.put(None)


def _trial_name(trial: Trial) -> str:
    return f"cell-{trial.config['cell']}-{trial.trial_id}"
