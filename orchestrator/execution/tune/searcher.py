"""The searcher, the scheduler and the stopper that Tune is given; none of them scans all cells."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.execution import ray_private
from orchestrator.execution.tune.cell_queue import CellQueue


class CellSearcher(Searcher):  # type: ignore[misc]
    """Gives Tune the number of the next cell of a queue when Tune asks for the next trial."""

    def __init__(self, cells: CellQueue) -> None:
        super().__init__()
        self._cells = cells

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._cells.finished:
            return str(Searcher.FINISHED)
        assignment = self._cells.take(trial_id)
        return None if assignment is None else {"cell": assignment.number, **asdict(assignment.request)}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Note that the trial's slot is free. Tune passes these arguments by keyword."""
        self._cells.release(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""

    restore = save


class LifoScheduler(FIFOScheduler):  # type: ignore[misc]
    """Gives a free worker the trial that was added last, and keeps Tune's controller fast as the grid grows.

    The first-in-first-out scheduler scans every trial there ever was at every step, and gives a free worker the oldest
    waiting one. For that trial, a replacement of a dead worker may be starting. Tune then cancels that start, again and
    again, and the slot stays empty for the rest of the run. As the searcher adds a trial only when a slot becomes free,
    the newest trial is the next cell in order.

    With ``reuse_actors``, Tune's controller keeps the worker of a finished trial only if another trial already waits
    for one with the same request, or if no trial waits at all. Here trials come one at a time. So while any worker was
    starting, the others would be ended with their cells and started anew, for the rest of the run. This class raises
    the number of workers to keep by one until the next cell was given out. A later Ray may keep its workers elsewhere;
    then workers are started anew as described.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[tuple[Any, Any]] = []

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        """Remove finished trials: each costs Tune 26 kB and a millisecond."""
        trials = tune_controller.get_trials()
        if finished := [trial for trial in trials if trial.is_finished()]:
            trials[:] = [trial for trial in trials if not trial.is_finished()]
            ray_private.discard_trials(tune_controller, finished)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        """Keep the worker of a trial that has just finished."""
        cache = ray_private.actor_cache(tune_controller)
        if cache is not None:
            cache.increase_max(trial.placement_group_factory)
            self._kept.append((cache, trial.placement_group_factory))

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        """Return the newest waiting trial. The controller may end the kept workers that no cell has taken over."""
        while self._kept:
            cache, request = self._kept.pop()
            cache.decrease_max(request)
        newest_first = reversed(tune_controller.get_trials())
        return next((trial for trial in newest_first if trial.status == Trial.PENDING), None)


class StopWhenTold(tune.Stopper):  # type: ignore[misc]
    """Ends Tune's run once ``told`` is true."""

    told = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self.told


class SilentReporter(TrialProgressCallback):  # type: ignore[misc]
    """Replaces the callback that prints trials, which Tune otherwise adds, and which keeps every trial."""

    def _print_nothing(self, *args: Any, **info: Any) -> None:
        """Ignore the event."""

    on_trial_result = on_trial_error = on_trial_complete = _print_nothing
