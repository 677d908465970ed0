"""Which cell is next, and which worker takes it: a searcher and a scheduler that neither copy nor scan the cells."""

from __future__ import annotations

import threading
from typing import Any

from ray import tune
from ray.tune.experiment import Trial
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from orchestrator.execution.tune.forgetting import forget_ended
from orchestrator.execution.tune.keeping import Keeping
from orchestrator.execution.tune.queue import Deck


class CellsInOrder(Searcher):  # type: ignore[misc]
    """Hands out the numbers of the cells as the deck deals them, when Tune asks for the next trial."""

    def __init__(self, deck: Deck) -> None:
        super().__init__()
        self._deck = deck

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        if self._deck.over:
            finished: str = Searcher.FINISHED
            return finished
        hand = self._deck.take(trial_id)
        if hand is None:
            return None
        wanted = hand.request
        request = {"CPU": wanted.cpus, "GPU": wanted.gpus, "memory": wanted.memory}
        return {"cell": hand.number, "request": {name: value for name, value in request.items() if value}}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Its place is free. Tune calls this by these keywords."""
        self._deck.ended(trial_id)

    def save(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""

    def restore(self, checkpoint_path: str) -> None:
        """Tune's snapshots are never restored."""


class NewestFirst(FIFOScheduler):  # type: ignore[misc]
    """A free worker takes the trial that was added last.

    The first-in-first-out scheduler gives it the oldest waiting trial, which is the very one a replacement for a
    dead worker is being started for; that start is then cancelled, again and again, and the place stays empty for
    the rest of the run. It also scans every trial there ever was at every step. As the searcher adds a trial only
    when a place becomes free, the newest trial is the next cell in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[str, int] = {}
        self._keeping = Keeping()

    def on_trial_add(self, tune_controller: Any, trial: Trial) -> None:
        self._order[trial.trial_id] = len(self._order)
        forget_ended(tune_controller)

    def on_trial_complete(self, tune_controller: Any, trial: Trial, result: dict[str, Any]) -> None:
        self._keeping.ended(tune_controller, trial)

    def choose_trial_to_run(self, tune_controller: Any) -> Trial | None:
        self._keeping.handed_out(tune_controller)
        waiting = [trial for trial in tune_controller.get_live_trials() if trial.status == Trial.PENDING]
        return max(waiting, key=lambda trial: self._order[trial.trial_id], default=None)


class StopWhenTold(tune.Stopper):  # type: ignore[misc]
    """Ends the run when it is told to."""

    def __init__(self, told: threading.Event | None) -> None:
        self._told = told or threading.Event()

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return False

    def stop_all(self) -> bool:
        return self._told.is_set()

    def __reduce__(self) -> tuple[Any, ...]:
        return StopWhenTold, (None,)  # Tune pickles it into its snapshots, which are never restored
