"""The callback that turns Tune's reports into cell events, and decides which cells are started again."""

from __future__ import annotations

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

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, CellOutcome, Resources
from orchestrator.execution import ray_private
from orchestrator.execution.tune import worker_failures
from orchestrator.execution.tune.cell_queue import CellQueue
from orchestrator.store.errors import RunStopped
from orchestrator.util.errors import one_line
from orchestrator.util.units import human_duration

NODE_LOSSES = 10
"""How often a cell may lose its node. A lost node is not counted as an attempt of the cell that ran on it."""


class TuneCallback(tune.Callback):  # type: ignore[misc]
    """Puts an event into ``events`` for every report of Tune, in Tune's thread; ``None`` is the end.

    Tune itself never repeats a trial. A cell that is started again goes back to the queue ``waiting`` and is a new
    trial, which can have another request. The other arguments are those of ``driver.run_cells``.

    Attributes:
        error: why no worker can start, why the store cannot be used, or what Tune itself has raised.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        waiting: CellQueue,
        max_attempts: int,
        on_gpu_oom: Callable[[Cell, float], None],
        store_url: str,
    ) -> None:
        self.events: Queue[CellEvent | None] = Queue()
        self.error: Exception | None = None
        self._cells, self._waiting, self._store_url = cells, waiting, store_url
        self._max_attempts, self._on_gpu_oom = max_attempts, on_gpu_oom
        self._starts: Counter[int] = Counter()
        self._failures: Counter[int] = Counter()
        self._node_losses: Counter[int] = Counter()
        self._first_request: dict[int, Resources] = {}
        self._ended: set[int] = set()
        self._workers: dict[str, tuple[Any, float]] = {}
        self._overdue: dict[str, str] = {}
        self._oom_kills = worker_failures.oom_kill_count()

    def unfinished(self) -> list[Cell]:
        """Return the cells that have not ended."""
        return [cell for number, cell in enumerate(self._cells) if number not in self._ended]

    def stop_workers(self) -> None:
        """Kill the workers of running cells. Nothing is lost by not waiting: results are written whole."""
        for worker, _ in list(self._workers.values()):
            _kill(worker)

    def stop_overdue(self, limit: float) -> None:
        """Kill the workers of cells that have run for more than ``limit`` seconds; waiting does not count."""
        now = time.monotonic()
        for trial_id, (worker, started) in list(self._workers.items()):  # in the order in which they started
            if now - started <= limit:
                break
            if trial_id not in self._overdue:
                self._overdue[trial_id] = (
                    f"ran for more than the limit of {human_duration(limit)} and its worker was ended; if it needs "
                    "longer, give a larger --cell-limit (0 for none) and --retry-failed"
                )
                _kill(worker)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["cell"]
        self._starts[number] += 1
        self._workers[trial.trial_id] = ray_private.trial_actor(trial), time.monotonic()
        self.events.put(CellEvent(self._cells[number], "started", attempt=self._starts[number]))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        outcome = CellOutcome(**result["outcome"])
        if outcome.problem == "store":
            self._workers.pop(trial.trial_id, None)
            self.error = self.error or RunStopped(self._store_url, outcome.error)
            self._waiting.stop()
        elif not (outcome.problem and self._retry_with_more(trial, outcome.problem)):
            self._end(
                trial,
                outcome.status,
                seconds=outcome.seconds,
                error=self._with_advice(trial, outcome.problem, outcome.error),
                traceback=outcome.traceback,
                recorded=not outcome.problem,
                log=result["log"],
                gpu_mib=outcome.gpu_mib,
            )

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        text = _error_text(trial)
        line = worker_failures.failure_line(text)
        if worker_failures.cannot_start(text):
            # The cause is not this cell, and each further attempt would cost seconds.
            self.error = self.error or RuntimeError(f"workers cannot start: {line}\n{text}")
            self.events.put(None)
            return
        number = trial.config["cell"]
        if overdue := self._overdue.pop(trial.trial_id, ""):
            self._end(trial, "failed", error=overdue, traceback=text, recorded=False)
            return
        kills_before, self._oom_kills = self._oom_kills, worker_failures.oom_kill_count()
        memory = worker_failures.out_of_memory(text, kernel_killed=self._oom_kills > kills_before)
        if memory and self._retry_with_more(trial, "main_memory"):
            return
        (self._node_losses if worker_failures.node_lost(text) else self._failures)[number] += 1
        if not memory and self._failures[number] < self._max_attempts and self._node_losses[number] < NODE_LOSSES:
            self._requeue(trial, _request(trial), first=True)
            return
        error = self._with_advice(trial, "main_memory" if memory else "", line)
        died = not memory and worker_failures.worker_died(text)
        self._end(trial, "failed", error=error, traceback=text, recorded=False, again=died)

    def _retry_with_more(self, trial: Trial, problem: str) -> bool:
        """Start a cell that ran out of memory once more, with as much as there can be; ``False`` the second time."""
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

    def _with_advice(self, trial: Trial, problem: str, error: str) -> str:
        request = _request(trial)
        first = self._first_request.get(trial.config["cell"], request)
        return one_line(worker_failures.memory_message(problem, error, first, request), 600) if problem else error

    def _requeue(self, trial: Trial, request: Resources, *, first: bool) -> None:
        self._workers.pop(trial.trial_id, None)
        self._waiting.requeue(trial.config["cell"], request, first=first)

    def _end(self, trial: Trial, kind: Any, **fields: Any) -> None:
        self._workers.pop(trial.trial_id, None)
        number = trial.config["cell"]
        if number not in self._ended:
            self._ended.add(number)
            attempt = max(1, self._starts[number])
            self.events.put(CellEvent(self._cells[number], kind, attempt=attempt, **fields))


def _kill(worker: Any) -> None:
    with contextlib.suppress(Exception):
        ray.kill(worker)


def _request(trial: Trial) -> Resources:
    return Resources(trial.config["cpus"], trial.config["gpus"])


def _error_text(trial: Trial) -> str:
    """Return what ended a trial, from the text file that Tune has just written; nothing is unpickled."""
    with contextlib.suppress(OSError), open(trial.error_file, errors="replace") as stream:
        return stream.read().partition("\n")[2].strip() or "unknown"  # the first line counts Tune's own failures
    return "unknown"


def _cpus_of_largest_node(gpus: float) -> float:
    """CPUs of the largest node with so many GPUs. A cell that requests all of them has the node's memory to itself."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max((node.get("CPU", 0.0) for node in nodes if node.get("GPU", 0.0) >= gpus), default=0.0)
