"""A worker whose cell has ended is kept until the next cell of its kind had its chance."""

from __future__ import annotations

from typing import Any

from ray.tune.experiment import Trial


class Keeping:
    """Has Tune's controller keep workers that it would end.

    With ``reuse_actors`` it keeps the worker of a trial that ends only where another trial already waits for one that
    asks for the same, or where no trial waits at all. Trials are handed out one by one, so while any worker is being
    started the others would be ended as their cells end, to be started anew, and so on for the rest of the run.
    This raises the number of workers to keep by one for the step in which the next cell is handed out.

    The cache is the controller's own; where a later Ray has none of that name, workers are started anew as before.
    """

    def __init__(self) -> None:
        self._asked: list[Any] = []

    def ended(self, tune_controller: Any, trial: Trial) -> None:
        """A trial has ended, and what becomes of its worker is decided next."""
        cache = getattr(tune_controller, "_actor_cache", None)
        if cache is not None:
            cache.increase_max(trial.placement_group_factory)
            self._asked.append(trial.placement_group_factory)

    def handed_out(self, tune_controller: Any) -> None:
        """What there is to run next has been handed out: who is not taken over now is ended at the end of the step."""
        while self._asked:
            tune_controller._actor_cache.decrease_max(self._asked.pop())
