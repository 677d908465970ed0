"""Changes to how Tune's controller keeps workers and trials. Without them, a run becomes slower as the grid grows."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial
from ray.tune.progress_reporter import TrialProgressCallback

from orchestrator.execution import ray_private


class WorkerKeeper:
    """Keeps the worker of a finished trial until the next cell was given out.

    With ``reuse_actors``, Tune's controller keeps such a worker only if another trial already waits for one with the
    same request, or if no trial waits at all. Here trials come one at a time. So while any worker was starting, the
    others would be ended with their cells and started anew, for the rest of the run. This class raises the number of
    workers to keep by one until the next cell was given out.

    A later Ray may keep its workers elsewhere. Then workers are started anew as described.
    """

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Any]] = []

    def trial_finished(self, controller: Any, trial: Trial) -> None:
        """Keep the worker of a trial that has just finished."""
        cache = ray_private.actor_cache(controller)
        if cache is not None:
            cache.increase_max(trial.placement_group_factory)
            self._kept.append((cache, trial.placement_group_factory))

    def cells_given_out(self) -> None:
        """Let the controller end the kept workers that no cell has taken over."""
        while self._kept:
            cache, request = self._kept.pop()
            cache.decrease_max(request)


def remove_finished_trials(controller: Any) -> None:
    """Remove finished trials from Tune's controller; call it where the controller adds a trial.

    The controller keeps every trial, looks through all of them whenever none is running, and writes all of them into a
    snapshot at its end: 26 kB of memory and a millisecond per trial. The snapshot is never restored, and the results of
    the trials are in the store.
    """
    trials = controller.get_trials()
    finished = [trial for trial in trials if trial.is_finished()]
    if finished:
        trials[:] = [trial for trial in trials if not trial.is_finished()]
        ray_private.discard_trials(controller, finished)


class SilentReporter(TrialProgressCallback):  # type: ignore[misc]
    """Replaces the callback that prints trials, which Tune otherwise adds, and which keeps every trial."""

    def _print_nothing(self, *args: Any, **info: Any) -> None:
        """Ignore the event."""

    on_trial_result = on_trial_error = on_trial_complete = _print_nothing
