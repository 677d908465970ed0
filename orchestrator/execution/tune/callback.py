"""The callback that turns Tune's reports into cell events, and decides which cells are started again."""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Queue
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.execution.tune import worker
from orchestrator.execution.tune.cell_queue import CellQueue
from orchestrator.store.errors import RunStopped
from orchestrator.util.errors import one_line
from orchestrator.util.units import human_duration

NODE_LOSSES = 10
"""A cell fails when this many of its attempts have lost their node. They do not count towards ``max_attempts``."""


class TuneCallback(TrialProgressCallback, tune.Stopper):  # type: ignore[misc]
    """Turns the reports of Tune into events and puts them into the queue ``events``. It is called in Tune's thread.

    ``None`` in the queue means that no more events come.

    As a ``Stopper``, it also tells Tune when to stop. As a ``TrialProgressCallback``, it takes the place of the
    callback that Tune otherwise adds. Tune's callback prints trials and keeps all of them in memory.

    Tune itself never repeats a trial. A cell that is started again goes back to the queue ``waiting``. It becomes a new
    trial, which can request more CPUs or GPUs. The other arguments are those of ``driver.run_cells``.

    Attributes:
        error: the error that ends the run: no worker can start, the store cannot be used, or Tune itself has failed.
        stop_requested: ends Tune's run once it is true.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        waiting: CellQueue,
        max_attempts: int,
        on_gpu_oom: Callable[[Cell, float], None],
        store_url: str,
    ) -> None:
        super().__init__()
        self.events: Queue[CellEvent | None] = Queue()
        self.error: Exception | None = None
        self.stop_requested = False
        self._cells, self._waiting, self._store_url = cells, waiting, store_url
        self._max_attempts, self._on_gpu_oom = max_attempts, on_gpu_oom
        self._starts, self._failures, self._node_losses = Counter[int](), Counter[int](), Counter[int]()
        self._first_request: dict[int, Resources] = {}
        self._ended: set[int] = set()
        self._workers: dict[str, tuple[Any, float]] = {}
        self._overdue: dict[str, str] = {}
        self._oom_kills = worker.oom_kill_count()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """Return false, so that Tune stops no trial: each trial ends by itself."""
        return False

    def stop_all(self) -> bool:
        """Return whether Tune's run ends now."""
        return self.stop_requested

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing to save: Tune's snapshots are never restored."""
        return {}

    def stop_workers(self) -> None:
        """Kill the workers of running cells. No result is damaged, because results are written in one step."""
        for actor, _ in list(self._workers.values()):
            _kill(actor)

    def stop_overdue(self, limit: float) -> None:
        """Kill the workers of cells that have run for more than ``limit`` seconds; waiting does not count."""
        now = time.monotonic()
        for trial_id, (actor, started) in list(self._workers.items()):  # in the order of their starts
            if now - started <= limit:
                break
            if trial_id not in self._overdue:
                self._overdue[trial_id] = (
                    f"the cell ran for longer than the limit of {human_duration(limit)}, so its worker was ended; give "
                    "a larger --cell-limit (0: no limit) and --retry-failed if the cell needs more time"
                )
                _kill(actor)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["cell"]
        self._starts[number] += 1
        # Private names; without them, a worker cannot be ended early.
        actor = getattr(getattr(trial, "temporary_state", None), "ray_actor", None)
        self._workers[trial.trial_id] = actor, time.monotonic()
        self.events.put(CellEvent(self._cells[number], "started", attempt=self._starts[number]))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        event: CellEvent = result["event"]
        if event.problem == "store":
            self._workers.pop(trial.trial_id, None)
            self.error = self.error or RunStopped(self._store_url, event.error)
            self._waiting.stop()
        elif not (event.problem and self._retry_with_more(trial, event.problem)):
            self._end(trial, event)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        text, number = _error_text(trial), trial.config["cell"]
        if worker.cannot_start(text):
            # The cause is not this cell, and each further attempt would cost seconds.
            self.error = self.error or RuntimeError(f"workers cannot start: {worker.failure_line(text)}\n{text}")
            self.events.put(None)
            return
        kills_before, self._oom_kills = self._oom_kills, worker.oom_kill_count()
        event = worker.failure(self._cells[number], text, kernel_killed=self._oom_kills > kills_before)
        if overdue := self._overdue.pop(trial.trial_id, ""):
            self._end(trial, replace(event, error=overdue, problem="", retryable=False))
        elif event.problem:
            if not self._retry_with_more(trial, event.problem):
                self._end(trial, event)
        else:
            (self._node_losses if worker.node_lost(text) else self._failures)[number] += 1
            if self._failures[number] < self._max_attempts and self._node_losses[number] < NODE_LOSSES:
                self._requeue(trial, _request(trial), first=True)
            else:
                self._end(trial, event)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        """Do nothing: :meth:`on_trial_result` has received the cell's result."""

    def _retry_with_more(self, trial: Trial, problem: str) -> bool:
        """Start a cell again that ran out of memory: with a whole GPU, or with all CPUs of the largest node.

        Returns ``False``, and starts nothing, if the cell had the whole GPU or all of these CPUs already, or if it was
        started again for lack of memory before.
        """
        number, request = trial.config["cell"], _request(trial)
        if problem == "gpu_memory":
            self._on_gpu_oom(self._cells[number], request.gpus)
            more = replace(request, gpus=1.0) if 0 < request.gpus < 1 else request
        else:
            more = replace(request, cpus=max(request.cpus, _cpus_of_largest_node(request.gpus)))
        if number in self._first_request or more == request:
            return False
        self._first_request[number] = request
        self._requeue(trial, more, first=False)
        return True

    def _advice(self, trial: Trial, problem: str, error: str) -> str:
        """Return the error of a cell that ran out of memory, with a note on what was tried and what can be done."""
        last = _request(trial)
        first = self._first_request.get(trial.config["cell"], last)
        if problem == "gpu_memory":
            whole = f"with {last.gpus:g} GPUs" if last.gpus != 1 else "with a whole GPU"
            tried = f"with {first.gpus:g} of a GPU, and again with a whole GPU" if first != last else whole
            return f"{error} ({tried}; it needs a GPU with more memory, a smaller batch or a smaller backbone)"
        tried = "next to other cells, and again alone on a node" if first != last else "alone on a node"
        return f"out of main memory {tried}: {error} (it needs a machine with more memory, or a smaller batch)"

    def _requeue(self, trial: Trial, request: Resources, *, first: bool) -> None:
        self._workers.pop(trial.trial_id, None)
        self._waiting.requeue(trial.config["cell"], request, first=first)

    def _end(self, trial: Trial, event: CellEvent) -> None:
        self._workers.pop(trial.trial_id, None)
        if (number := trial.config["cell"]) in self._ended:
            return
        self._ended.add(number)
        error = one_line(self._advice(trial, event.problem, event.error), 600) if event.problem else event.error
        self.events.put(replace(event, error=error, attempt=max(1, self._starts[number])))


def _kill(actor: Any) -> None:
    with contextlib.suppress(Exception):
        ray.kill(actor)


def _request(trial: Trial) -> Resources:
    return Resources(trial.config["cpus"], trial.config["gpus"])


def _error_text(trial: Trial) -> str:
    """Return what ended a trial, from the text file that Tune has just written; nothing is unpickled."""
    with contextlib.suppress(OSError), open(trial.error_file, errors="replace") as stream:
        return stream.read().partition("\n")[2].strip() or "unknown"  # the first line is Tune's count of failures
    return "unknown"


def _cpus_of_largest_node(gpus: float) -> float:
    """Return the CPUs of the largest node with at least ``gpus`` GPUs.

    A cell that requests all of these CPUs is alone on the node.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max((node.get("CPU", 0.0) for node in nodes if node.get("GPU", 0.0) >= gpus), default=0.0)
