"""Cells on Ray Tune: one trial per cell. The only module that imports ``ray.tune``.

Tune decides which worker takes which cell, starts workers, and starts a cell again when its worker dies. It is not
asked to remember anything: results are in the store, and resuming means planning the cells without one.

What makes thousands of cells cheap, each measured:

- a worker process is kept from cell to cell (``reuse_actors``): starting one costs seconds, reusing one milliseconds;
- trials carry a number, not a cell, and are handed out one by one by a searcher: Tune copies configurations around
  and would copy a list of cells once per cell;
- Tune's loggers and console output are off, and its snapshots go to a temporary folder that is removed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle, tune
from ray.exceptions import ActorUnavailableError, RayActorError
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.cell import Cell
from orchestrator.cluster import HEALTH_SECONDS, ClusterLost, check_alive, worker_log
from orchestrator.connect import environment
from orchestrator.events import CellEvent, Resources, one_line
from orchestrator.local import RUNNER, resolve

if TYPE_CHECKING:
    from orchestrator.settings import RunSettings

CHUNK = 128
"""Cells travel to workers in chunks of this size, each fetched when its first cell comes up."""

STOP_SECONDS = 20.0
"""How long Tune gets to end after it was told to, before this process leaves without it."""

_TUNE_ENVIRONMENT = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # no csv, json and tensorboard files per trial: 10 ms each
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Ctrl-C is this module's
    "TUNE_GLOBAL_CHECKPOINT_S": "3600",  # nobody restores Tune's snapshots
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1000000000",
    "RAY_AIR_NEW_OUTPUT": "0",
}


def run_cells(
    cells: Sequence[Cell],
    settings: RunSettings,
    *,
    resources: Callable[[Cell], Resources],
    slots: int,
    max_attempts: int,
    on_event: Callable[[CellEvent], None],
    runner: str = RUNNER,
) -> None:
    """Run cells on the Ray instance this process is connected to, nearly in the order given.

    Args:
        cells: what to run. A worker keeps what it has loaded, so neighbours should share backbone and data.
        settings: handed to the runner.
        resources: what a cell occupies. Workers are reused only among cells that ask for the same.
        slots: at most so many cells are under way or waiting for a place; as many as fit on the cluster, or, where
            it grows by itself, on the cluster it may become.
        max_attempts: a cell whose worker dies, or whose runner raises, is started at most so often; the loss of a
            whole machine does not count.
        on_event: called in the thread that called ``run_cells``, one event at a time.
        runner: ``module:function``, see :data:`orchestrator.local.RUNNER`.

    ``KeyboardInterrupt`` stops the workers and is raised on; what has finished is in the store. Raises
    :class:`~orchestrator.cluster.ClusterLost` when the cluster goes away, and whatever ``on_event`` raises.
    """
    if not cells:
        return
    if slots < 1 or max_attempts < 1:
        raise ValueError(f"slots and max_attempts start at 1, not {slots} and {max_attempts}")
    relay = _Relay(cells)
    stop = threading.Event()
    with _quiet(slots), tempfile.TemporaryDirectory(prefix="bolt-tune-", ignore_cleanup_errors=True) as folder:
        trainable = _shared(cells, settings, runner)
        searcher = _Cells([resources(cell) for cell in cells])
        thread = threading.Thread(
            target=_fit,
            args=(trainable, searcher, relay, stop),
            kwargs={"slots": slots, "max_attempts": max_attempts, "folder": folder},
            name="tune",
            daemon=True,
        )
        thread.start()
        try:
            _listen(relay, thread, on_event)
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
    if missing := relay.unfinished():
        raise RuntimeError(f"Tune ended, and {len(missing)} cells have not, first {missing[0].id}")


def _listen(relay: _Relay, thread: threading.Thread, on_event: Callable[[CellEvent], None]) -> None:
    """Pass events on until Tune has ended, looking after the cluster while nothing comes."""
    while True:
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


def _fit(
    trainable: type[tune.Trainable],
    searcher: _Cells,
    relay: _Relay,
    stop: threading.Event,
    *,
    slots: int,
    max_attempts: int,
    folder: str,
) -> None:
    """Run Tune, in a thread of its own: it can hang when its cluster dies, and must not take the driver with it."""
    try:
        tune.run(
            trainable,
            name="cells",
            storage_path=folder,
            num_samples=len(searcher.requests),
            search_alg=searcher,
            scheduler=_NewestFirst(),
            max_concurrent_trials=slots,
            reuse_actors=True,
            max_failures=max_attempts - 1,
            raise_on_failed_trial=False,
            stop=_Stop(stop),
            callbacks=[relay],
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
    return f"cell-{trial.config['cell']}"


@contextlib.contextmanager
def _quiet(slots: int) -> Iterator[None]:
    """Tune's settings that exist only as environment variables, and silence from its loggers; put back after."""
    loggers = [logging.getLogger(name) for name in ("ray.tune", "ray.air", "ray.train")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with environment({**_TUNE_ENVIRONMENT, "TUNE_MAX_PENDING_TRIALS_PG": str(slots)}):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


# -- in the workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shared:
    """What every worker is given once: references to the chunks of cells, and how to run one."""

    chunks: tuple[ray.ObjectRef[list[Cell]], ...]
    settings: RunSettings
    runner: str
    fetched: dict[int, list[Cell]] = field(default_factory=dict)

    def cell(self, number: int) -> Cell:
        chunk = number // CHUNK
        if chunk not in self.fetched:
            self.fetched.clear()  # cells come nearly in order; one chunk at a time is enough
            self.fetched[chunk] = ray.get(self.chunks[chunk])
        return self.fetched[chunk][number % CHUNK]


class _Worker(tune.Trainable):  # type: ignore[misc]
    """A worker that runs one cell per trial.

    ``setup`` is light on purpose and everything heavy is imported in the first ``step``: Tune may take a starting
    worker's trial away and give it to another that is free already, and a worker that is long in starting would
    never come to work.
    """

    def setup(self, config: dict[str, Any], shared: _Shared | None = None) -> None:
        assert shared is not None
        self._shared = shared
        self._number = int(config["cell"])

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        self._number = int(new_config["cell"])
        return True

    def step(self) -> dict[str, Any]:
        outcome = resolve(self._shared.runner)(self._shared.cell(self._number), self._shared.settings)
        return {
            "outcome": outcome.status,
            "outcome_seconds": outcome.seconds,
            "outcome_error": outcome.error,
            "outcome_log": worker_log(),
            "done": True,
        }

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([dict(config["request"])])


def _shared(cells: Sequence[Cell], settings: RunSettings, runner: str) -> type[tune.Trainable]:
    chunks = tuple(ray.put(list(cells[start : start + CHUNK])) for start in range(0, len(cells), CHUNK))
    trainable: type[tune.Trainable] = tune.with_parameters(_Worker, shared=_Shared(chunks, settings, runner))
    return trainable


# -- in the driver -------------------------------------------------------------------------------------------------


class _Cells(Searcher):  # type: ignore[misc]
    """Hands out the numbers of the cells, first to last, when Tune asks for the next trial."""

    def __init__(self, requests: Sequence[Resources]) -> None:
        super().__init__()
        self.requests = requests
        self._next = 0

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        if self._next >= len(self.requests):
            finished: str = Searcher.FINISHED
            return finished
        number, self._next = self._next, self._next + 1
        wanted = self.requests[number]
        request = {"CPU": wanted.cpus, "GPU": wanted.gpus, "memory": wanted.memory}
        return {"cell": number, "request": {name: value for name, value in request.items() if value}}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Nothing to learn from; Tune calls it by these keywords."""

    def save(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""

    def restore(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""


class _NewestFirst(FIFOScheduler):  # type: ignore[misc]
    """A free worker takes the trial that was added last.

    The first-in-first-out scheduler gives it the oldest waiting trial, which is the very one a replacement for a
    dead worker is being started for; that start is then cancelled, again and again, and the place stays empty for
    the rest of the run. It also scans every trial there ever was at every step. As the searcher adds a trial only
    when a place becomes free, the newest trial is the next cell in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[str, int] = {}

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._order[trial.trial_id] = len(self._order)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        waiting = [trial for trial in tune_controller.get_live_trials() if trial.status == Trial.PENDING]
        return max(waiting, key=lambda trial: self._order[trial.trial_id], default=None)


class _Stop(tune.Stopper):  # type: ignore[misc]
    """Ends the run when it is told to."""

    def __init__(self, told: threading.Event | None) -> None:
        self._told = told or threading.Event()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._told.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Stop, (None,)  # Tune pickles it into its snapshots, which are never restored


class _Relay(tune.Callback):  # type: ignore[misc]
    """Turns what Tune tells its callbacks into events, in Tune's thread; ``None`` in the queue is the end."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.events: queue.Queue[CellEvent | None] = queue.Queue()
        self.error: Exception | None = None
        self._cells = cells
        self._attempts: dict[int, int] = {}
        self._ended: set[int] = set()
        self._workers: dict[str, Any] = {}

    def unfinished(self) -> list[Cell]:
        return [cell for number, cell in enumerate(self._cells) if number not in self._ended]

    def stop_workers(self) -> None:
        """End the workers of cells that are under way; there is nothing to wait for, results are written whole."""
        for worker in self._workers.values():
            with contextlib.suppress(Exception):
                ray.kill(worker)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["cell"]
        self._attempts[number] = self._attempts.get(number, 0) + 1
        self._workers[trial.trial_id] = trial.temporary_state.ray_actor
        self.events.put(CellEvent(self._cells[number], "started", attempt=self._attempts[number]))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        self._end(
            trial,
            result["outcome"],
            seconds=result["outcome_seconds"],
            error=result["outcome_error"],
            log=result["outcome_log"],
        )

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        error = _error_of(trial)
        if getattr(error, "actor_init_failed", False):
            # Not this cell's fault: no worker can start, and each attempt costs seconds.
            self.error = self.error or RuntimeError(f"workers cannot start: {_why(error)}\n{error}")
            self.events.put(None)
            return
        self._end(trial, "failed", error=_why(error), traceback=str(error), recorded=False)

    def on_trial_recover(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        if _lost_its_node(_error_of(trial)):
            trial.run_metadata.num_failures -= 1  # not the cell's fault, so not one of its attempts

    def _end(self, trial: Trial, kind: Any, **what: Any) -> None:
        self._workers.pop(trial.trial_id, None)
        number = trial.config["cell"]
        if number not in self._ended:
            self._ended.add(number)
            attempt = max(1, self._attempts.get(number, 0))
            self.events.put(CellEvent(self._cells[number], kind, attempt=attempt, **what))


def _error_of(trial: Trial) -> Exception:
    """What ended a trial, from the file on this machine that Tune has just written it to."""
    with contextlib.suppress(Exception), open(trial.pickled_error_file, "rb") as stream:
        error = cloudpickle.load(stream)
        if isinstance(error, Exception):
            return error
    with contextlib.suppress(Exception), open(trial.error_file) as stream:
        return RuntimeError(stream.read())
    return RuntimeError("unknown")


def _lost_its_node(error: Exception) -> bool:
    """Whether a worker was lost because its machine was, or could not be reached."""
    if isinstance(error, ActorUnavailableError):
        return True
    return isinstance(error, RayActorError) and "node has died" in str(error)


def _why(error: Exception) -> str:
    """One line for a failure that reached Tune: what a runner raised, or how a worker died."""
    if isinstance(error, RayActorError) and not error.actor_init_failed:
        lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
        return one_line("the worker process died: " + " ".join(lines[1:] or lines))
    lines = [line for line in str(error).splitlines() if line.strip()]
    return one_line(lines[-1] if lines else type(error).__name__)  # a remote traceback ends with what was raised
