"""Run cells that do nothing, in three ways that ``scale.py`` measures. This module is not a command.

Each way writes one real result file per cell through the store (atomic, synced to disk), and returns when each cell
had ended, in seconds:
    on_tune   run_cells, as a session runs cells
    grid      Tune as its documentation shows it, reuse_actors on: tune.grid_search over a list of dicts
    pool      ray.util.ActorPool, two actors, without trials, retries or resume: about the least time that Ray needs
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store
from orchestrator.store.results import Evaluation, Manifest, Result, Timings

WORKERS = 2
RUNNER = "benchmarks.fanout:record_nothing"


def make_cells(count: int) -> list[Cell]:
    """Return cells of the few-shot grid that differ in their seed."""
    from orchestrator.sharing.grid_listing import expand_grid  # here, because every worker imports this module

    grid, _ = expand_grid("fewshot", RunSettings("runs"), limit=1)
    return [replace(grid.cells[0], seed=seed) for seed in range(count)]


def record_nothing(cell: Cell, settings: RunSettings) -> CellEvent:
    """Measure nothing, and record a result like that of any cell."""
    evaluation = Evaluation(cell.dataset.name, 60.0, 600, 1000, 40.0, ((6, 10),) * 100, None, None)
    manifest = Manifest("0" * 40, False, {"python": "3"}, "none", 1, (), "2026-01-01T00:00:00+00:00")
    curves = {"train_loss": tuple(1 / epoch for epoch in range(1, 21))}
    result = Result(cell, (evaluation,), 588, Timings(0.0, 0.0, 0.0), 0.0, 40, manifest, curves, {})
    Store(settings.store_url).write_result(result)
    return CellEvent(cell, "finished")


def per_cell(ended: Sequence[float]) -> float:
    """Return the milliseconds of each cell after the first."""
    return 1000 * (ended[-1] - ended[0]) / max(1, len(ended) - 1)


def on_tune(
    cells: Sequence[Cell],
    settings: RunSettings,
    runner: str = RUNNER,
    on_event: Callable[[CellEvent], Iterable[Cell] | None] = lambda event: None,
    request: Callable[[Cell], Resources] = lambda cell: Resources(),
    later: Sequence[Cell] = (),
) -> list[float]:
    """Run cells with ``run_cells`` until they are done, or until ``on_event`` raises ``KeyboardInterrupt``.

    Raises ``RuntimeError`` if a cell fails.
    """
    from orchestrator.execution.tune.driver import run_cells

    ended = list[float]()

    def note(event: CellEvent) -> Iterable[Cell] | None:
        if event.kind == "failed":
            raise RuntimeError(event.error)
        if event.kind == "finished":
            ended.append(time.perf_counter())
        return on_event(event)

    with suppress(KeyboardInterrupt):
        run_cells(cells, settings, note, later=later, request=request, max_attempts=3, runner=runner)
    return ended


def bare_tune(
    items: Sequence[Any],
    work: Callable[[Any], object],
    folder: Path,
    request: Callable[[Any], dict[str, float]] | None = None,
) -> list[float]:
    """Run ``work`` on each item with Tune as its documentation shows it."""
    from ray import tune

    ended = list[float]()

    class Trainable(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.item = config["item"]

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.item = new_config["item"]
            return True

        def step(self) -> dict[str, Any]:
            work(self.item)
            return {"done": True}

    class Ends(tune.Callback):  # type: ignore[misc]
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ended.append(time.perf_counter())

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # verbose=0 alone still prints a box
    no_checkpoints = tune.CheckpointConfig(checkpoint_at_end=False)
    tune.Tuner(
        tune.with_resources(Trainable, lambda config: request(config["item"])) if request else Trainable,
        param_space={"item": tune.grid_search(list(items))},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"), verbose=0, callbacks=[Ends()], checkpoint_config=no_checkpoints
        ),
    ).fit()
    return ended


def grid(cells: Sequence[Cell], folder: Path) -> list[float]:
    """Run the cells with a bare ``tune.grid_search``."""
    settings = RunSettings(str(folder))
    return bare_tune([c.to_dict() for c in cells], lambda c: record_nothing(Cell.from_dict(c), settings), folder)


def pool(cells: Sequence[Cell], folder: Path) -> list[float]:
    """Run the cells with two actors and a queue."""
    import ray
    from ray.util import ActorPool

    class Runner:
        def run(self, cell: Cell) -> CellEvent:
            return record_nothing(cell, RunSettings(str(folder)))

    ended, remote = list[float](), ray.remote(Runner)
    actors = ActorPool([remote.remote() for _ in range(WORKERS)])
    for _ in actors.map_unordered(lambda actor, cell: actor.run.remote(cell), cells):
        ended.append(time.perf_counter())
    return ended
