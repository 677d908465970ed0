"""Run Tune in a thread of its own, pass on what it says, and end it."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import ray
from ray import tune
from ray.tune.experiment import Trial

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.execution.cluster import HEALTH_SECONDS, ClusterLost, check_alive
from orchestrator.execution.connect import environment
from orchestrator.execution.local import RUNNER
from orchestrator.execution.tune.callback import Relay
from orchestrator.execution.tune.forgetting import NothingPrinted
from orchestrator.execution.tune.queue import Deck
from orchestrator.execution.tune.searcher import CellsInOrder, NewestFirst, StopWhenTold
from orchestrator.execution.tune.worker import trainable_for
from orchestrator.store.failure_kind import Unwritable
from orchestrator.util.scratch import ScratchFolder

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings

LOOK_SECONDS = 1.0
"""How often it is looked after cells that run for too long."""

STOP_SECONDS = 60.0
"""How long Tune gets to end after it was told to, before this process leaves without it."""

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no csv, json and tensorboard files per trial: 10 ms each
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is this module's
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nobody restores Tune's snapshots
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "TUNE_MAX_PENDING_TRIALS_PG": "1000000",  # the deck deals no more than there is room for
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_cells(
    cells: Sequence[Cell],
    settings: RunSettings,
    *,
    resources: Callable[[Cell], Resources],
    max_attempts: int,
    on_event: Callable[[CellEvent], None],
    slots: int | None = None,
    capacity: Callable[[], tuple[float, float]] | None = None,
    outgrew: Callable[[Cell, float], None] = lambda cell, share: None,
    cell_limit: float = 0.0,
    runner: str = RUNNER,
) -> None:
    """Run cells on the Ray instance this process is connected to, nearly in the order given.

    Args:
        cells: what to run. A worker keeps what it has loaded, so neighbours should share backbone and data.
        settings: handed to the runner, with the worker's share of a GPU.
        resources: what a cell occupies, asked in Tune's thread when it is handed out. Workers are reused only among
            cells that ask for the same.
        max_attempts: a cell whose worker dies, or whose runner raises, is started at most so often; the loss of a
            whole machine does not count, unless it happens to one cell ten times. One that runs out of memory is
            started once more, with a whole GPU or, for main memory, alone on a node.
        on_event: called in the thread that called ``run_cells``, one event at a time.
        slots: at most so many cells are under way or waiting for a place; as many as fit by default.
        capacity: CPUs and GPUs of the cluster, or, where it grows by itself, of the cluster it may become; asked
            every few seconds, in Tune's thread. What the cluster has now, by default.
        outgrew: told, in Tune's thread, of a cell that ran out of GPU memory, with the share it had.
        cell_limit: seconds after which the worker of a cell is ended and the cell counts as failed; 0 for none.
        runner: ``module:function``, see :data:`orchestrator.execution.local.RUNNER`.

    ``KeyboardInterrupt`` stops the workers and is raised on; what has finished is in the store. Raises
    :class:`~orchestrator.execution.cluster.ClusterLost` when the cluster goes away,
    :class:`~orchestrator.store.failure_kind.Unwritable` when the store takes nothing, after the cells under way have
    ended, and whatever ``on_event`` raises.
    """
    if not cells:
        return
    if (slots is not None and slots < 1) or max_attempts < 1:
        raise ValueError(f"slots and max_attempts start at 1, not {slots} and {max_attempts}")
    deck = Deck(len(cells), lambda number: resources(cells[number]), capacity or now_there, slots)
    relay = Relay(cells, deck, max_attempts, outgrew)
    stop = threading.Event()
    with _quiet(), ScratchFolder("tune") as folder:
        trainable = trainable_for(cells, settings, runner)
        arguments = (trainable, deck, relay, stop, str(folder))
        thread = threading.Thread(target=_fit, args=arguments, name="tune", daemon=True)
        thread.start()
        try:
            _listen(relay, thread, on_event, cell_limit)
        except ClusterLost:
            raise  # Tune's thread may never end; it is left behind
        except BaseException:
            stop.set()
            relay.stop_workers()
            thread.join(STOP_SECONDS)
            raise
        stop.set()
        thread.join(STOP_SECONDS)
    if relay.error is not None:
        raise relay.error
    if relay.unwritable:
        raise Unwritable(settings.store_url, relay.unwritable)
    if missing := relay.unfinished():
        raise RuntimeError(f"Tune ended, and {len(missing)} cells have not, first {missing[0].id}")


def now_there() -> tuple[float, float]:
    """CPUs and GPUs of the cluster as it is."""
    there = ray.cluster_resources()
    return there.get("CPU", 0.0), there.get("GPU", 0.0)


def _listen(relay: Relay, thread: threading.Thread, on_event: Callable[[CellEvent], None], cell_limit: float) -> None:
    """Pass events on until Tune has ended, looking after the cluster while nothing comes, and after cells that hang."""
    looked = time.monotonic()
    while True:
        if cell_limit and time.monotonic() - looked > LOOK_SECONDS:
            relay.end_overdue(cell_limit)
            looked = time.monotonic()
        try:
            event = relay.events.get(timeout=HEALTH_SECONDS)
        except queue.Empty:
            check_alive()
            if thread.is_alive():
                continue
            return
        if event is None:
            return
        if event.kind == "failed" and not event.recorded:
            check_alive()  # a dying cluster takes its workers along; that is no failure of their cells
        on_event(event)


def _fit(trainable: type[tune.Trainable], deck: Deck, relay: Relay, stop: threading.Event, folder: str) -> None:
    """Run Tune, in a thread of its own: it can hang when its cluster dies, and must not take the driver with it."""
    try:
        tune.run(
            trainable,
            name="cells",
            storage_path=folder,
            num_samples=-1,  # the deck knows when it is over: a cell that is tried again is one more trial
            search_alg=CellsInOrder(deck),
            scheduler=NewestFirst(),
            reuse_actors=True,
            max_failures=0,  # the relay says what is tried again
            raise_on_failed_trial=False,
            stop=StopWhenTold(stop),
            callbacks=[relay, NothingPrinted()],
            # Class trainables save at their end by default; this one has nothing to save, and would fail.
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            trial_name_creator=_trial_number,
            trial_dirname_creator=_trial_number,
            verbose=0,
        )
    except Exception as error:
        relay.error = error
    finally:
        relay.events.put(None)


def _trial_number(trial: Trial) -> str:
    return f"cell-{trial.config['cell']}-{trial.trial_id}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Tune's settings that exist only as environment variables, and silence from its loggers; put back after."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with environment(_TUNE_ENVIRONMENT):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
