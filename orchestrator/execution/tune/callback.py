"""What Tune tells its callbacks, as events; what is tried again, and how."""

from __future__ import annotations

import contextlib
import queue
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray import tune
from ray.tune.experiment import Trial

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.execution.tune import worker_failures as endings
from orchestrator.execution.tune.queue import Deck
from orchestrator.util.errors import one_line
from orchestrator.util.units import human_duration

NODE_LOSSES = 10
"""A machine that is lost is no fault of the cell's that ran on it, unless it happens to one cell so often."""


class Relay(tune.Callback):  # type: ignore[misc]
    """Turns what Tune tells its callbacks into events, in Tune's thread; ``None`` in the queue is the end.

    Tune itself repeats nothing: a cell that is tried again is a new trial, which can ask for something else.

    Args:
        cells: by number.
        deck: where a cell that is to be tried again goes back to.
        max_attempts: how often a cell is started whose worker dies, or whose runner raises.
        outgrew: told of a cell that ran out of GPU memory, with the share it had.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        deck: Deck,
        max_attempts: int,
        outgrew: Callable[[Cell, float], None] = lambda cell, share: None,
    ) -> None:
        self.events: queue.Queue[CellEvent | None] = queue.Queue()
        self.error: Exception | None = None
        self.unwritable = ""
        self._cells, self._deck, self._max_attempts, self._outgrew = cells, deck, max_attempts, outgrew
        self._starts: dict[int, int] = {}
        self._failures: Counter[int] = Counter()
        self._losses: Counter[int] = Counter()
        self._given_more: dict[int, Resources] = {}
        self._ended: set[int] = set()
        self._workers: dict[str, tuple[Any, float]] = {}
        self._overdue: dict[str, str] = {}
        self._kernel_kills = endings.kernel_kills()

    def unfinished(self) -> list[Cell]:
        return [cell for number, cell in enumerate(self._cells) if number not in self._ended]

    def stop_workers(self) -> None:
        """End the workers of cells that are under way; there is nothing to wait for, results are written whole."""
        for worker, _ in list(self._workers.values()):
            with contextlib.suppress(Exception):
                ray.kill(worker)

    def end_overdue(self, limit: float) -> None:
        """End the workers of cells that have run for more than ``limit`` seconds; waiting for a place is no running."""
        now = time.monotonic()
        for trial_id, (worker, since) in list(self._workers.items()):
            if now - since > limit and trial_id not in self._overdue:
                self._overdue[trial_id] = endings.over_limit(human_duration(limit))
                with contextlib.suppress(Exception):
                    ray.kill(worker)

    def on_trial_start(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        number = trial.config["cell"]
        self._starts[number] = self._starts.get(number, 0) + 1
        self._workers[trial.trial_id] = trial.temporary_state.ray_actor, time.monotonic()
        self.events.put(CellEvent(self._cells[number], "started", attempt=self._starts[number]))

    def on_trial_result(
        self, iteration: int, trials: list[Trial], trial: Trial, result: dict[str, Any], **info: Any
    ) -> None:
        error, problem = result["outcome_error"], result["outcome_problem"]
        if problem == "store":
            self._workers.pop(trial.trial_id, None)
            self.unwritable = self.unwritable or error
            self._deck.stop()
            return
        if problem and self._give_more(trial, problem):
            return
        self._end(
            trial,
            result["outcome"],
            seconds=result["outcome_seconds"],
            error=self._with_advice(trial, problem, error),
            traceback=result["outcome_traceback"],
            recorded=not problem,
            log=result["outcome_log"],
            gpu_mib=result["outcome_gpu_mib"],
        )

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:
        said = _said(trial)
        if endings.cannot_start(said):
            # Not this cell's fault: no worker can start, and each attempt costs seconds.
            self.error = self.error or RuntimeError(f"workers cannot start: {endings.why(said)}\n{said}")
            self.events.put(None)
            return
        number = trial.config["cell"]
        if overdue := self._overdue.pop(trial.trial_id, ""):
            self._end(trial, "failed", error=overdue, traceback=said, recorded=False)
            return
        memory = endings.ran_out_of_memory(said, self._killed_by_kernel())
        if memory and self._give_more(trial, "main_memory"):
            return
        (self._losses if endings.lost_its_node(said) else self._failures)[number] += 1
        if not memory and self._failures[number] < self._max_attempts and self._losses[number] < NODE_LOSSES:
            self._again(trial, _request(trial), soon=True)
            return
        error = self._with_advice(trial, "main_memory" if memory else "", endings.why(said))
        died = not memory and endings.worker_died(said)
        self._end(trial, "failed", error=error, traceback=said, recorded=False, again=died)

    def _killed_by_kernel(self) -> bool:
        """Whether the kernel of this machine has ended a process for want of memory since it was last asked."""
        before, self._kernel_kills = self._kernel_kills, endings.kernel_kills()
        return self._kernel_kills > before

    def _give_more(self, trial: Trial, problem: str) -> bool:
        """Have a cell that ran out of memory tried once more with all there can be, if it has not been."""
        number, had = trial.config["cell"], _request(trial)
        if problem == "gpu_memory":
            self._outgrew(self._cells[number], had.gpus)
            more = replace(had, gpus=1.0) if 0 < had.gpus < 1 else had
        else:
            more = replace(had, cpus=max(had.cpus, _all_cpus_of_a_node(had.gpus)))
        if number in self._given_more or more == had:
            return False
        self._given_more[number] = had
        self._again(trial, more, soon=False)
        return True

    def _with_advice(self, trial: Trial, problem: str, error: str) -> str:
        if not problem:
            return error
        had = _request(trial)
        return one_line(endings.advice(problem, error, self._given_more.get(trial.config["cell"], had), had), 600)

    def _again(self, trial: Trial, request: Resources, *, soon: bool) -> None:
        self._workers.pop(trial.trial_id, None)
        self._deck.hand_back(trial.config["cell"], request, soon=soon)

    def _end(self, trial: Trial, kind: Any, **what: Any) -> None:
        self._workers.pop(trial.trial_id, None)
        number = trial.config["cell"]
        if number not in self._ended:
            self._ended.add(number)
            attempt = max(1, self._starts.get(number, 0))
            self.events.put(CellEvent(self._cells[number], kind, attempt=attempt, **what))


def _request(trial: Trial) -> Resources:
    asked = trial.config["request"]
    return Resources(asked.get("CPU", 0.0), asked.get("GPU", 0.0), int(asked.get("memory", 0)))


def _said(trial: Trial) -> str:
    """What ended a trial, from the text that Tune has just written down; nothing is unpickled."""
    with contextlib.suppress(OSError), open(trial.error_file, errors="replace") as stream:
        return stream.read().partition("\n")[2].strip() or "unknown"  # the first line counts Tune's own failures
    return "unknown"


def _all_cpus_of_a_node(gpus: float) -> float:
    """CPUs of the largest node that has so many GPUs: who asks for all of them has its main memory to itself."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return max((node.get("CPU", 0.0) for node in nodes if node.get("GPU", 0.0) >= gpus), default=0.0)
