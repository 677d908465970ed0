"""Tune's searcher and scheduler for cells: which cell comes next, and which worker runs it. Neither scans all cells."""

from __future__ import annotations

import threading
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.execution.tune.cell_queue import CellQueue
from orchestrator.execution.tune.tune_patches import WorkerKeeper, remove_finished_trials


class CellSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the number of the next cell of a queue when Tune asks for the next trial."""

    def __init__(self, cells: CellQueue) -> None:
        super().__init__()
        self._cells = cells

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._cells.finished:
            finished: str = Searcher.FINISHED
            return finished
        assignment = self._cells.take(trial_id)
        if assignment is None:
            return None
        request = assignment.request
        amounts = {"CPU": request.cpus, "GPU": request.gpus, "memory": request.memory}
        return {"cell": assignment.number, "request": {name: amount for name, amount in amounts.items() if amount}}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """The trial's slot is free. Tune passes these arguments by keyword."""
        self._cells.release(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""

    def restore(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""


class LifoScheduler(FIFOScheduler):  # type: ignore[misc]
    """Gives a free worker the trial that was added last.

    The first-in-first-out scheduler gives it the oldest waiting trial. For that trial, a replacement of a dead worker
    may be starting. Tune then cancels that start, again and again, and the slot stays empty for the rest of the run.
    That scheduler also scans every trial there ever was at every step. As the searcher adds a trial only when a slot
    becomes free, the newest trial is the next cell in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[str, int] = {}
        self._workers = WorkerKeeper()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._order[trial.trial_id] = len(self._order)
        remove_finished_trials(tune_controller)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._workers.trial_finished(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        self._workers.cells_given_out()
        waiting = [trial for trial in tune_controller.get_live_trials() if trial.status == Trial.PENDING]
        return max(waiting, key=lambda trial: self._order[trial.trial_id], default=None)


class StopOnEvent(tune.Stopper):  # type: ignore[misc]
    """Ends Tune's run when an event is set."""

    def __init__(self, event: threading.Event | None) -> None:
        self._event = event or threading.Event()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._event.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return StopOnEvent, (None,)  # Tune pickles it into its snapshots, which are never restored
