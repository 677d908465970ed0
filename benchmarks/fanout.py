"""Run cells of a method that does nothing, in three ways that ``scale.py`` measures. This module is not a command.

Each way writes one real result file per cell through the store (atomic, synced to disk):
    on_tune   run_cells, as a session runs cells
    grid      Tune as its documentation shows it, reuse_actors on: tune.grid_search over a list of dicts
    pool      ray.util.ActorPool, two actors, without trials, retries or resume: about the least time that Ray needs
"""

import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bolt.protocol import STRICT
from orchestrator.core.cell import BackboneRef, Cell, DatasetRef, MethodRef, SourceRef
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store
from orchestrator.store.results import Evaluation, Manifest, Result, Timings

WORKERS = 2
RUNNER = "benchmarks.fanout:record_nothing"
CLASSES = 100


def make_cells(count: int) -> list[Cell]:
    """Return cells with usual fields that differ in their seed."""
    sources = tuple(SourceRef(f"source-{number}", f"{number:08x}") for number in range(16))
    target, backbone = DatasetRef("target", "00000000"), BackboneRef("vit-b-32", "00000000")
    method = MethodRef("bolt", 1, (("epochs", 20), ("learning_rate", 0.001), ("top_k", 12)))
    usual: dict[str, Any] = {"track": "fewshot", "protocol": STRICT, "backbone": backbone, "domain": "general",
        "dataset": target, "evaluate_on": (target,), "sources_rule": "leave_one_out", "sources": sources,
        "shots": 4, "method": method}  # fmt: skip
    return [Cell(**usual, seed=seed) for seed in range(count)]


def record_nothing(cell: Cell, settings: RunSettings) -> CellEvent:
    """Measure nothing, and record a result like that of any cell."""
    extra = int(cell.id[-8:], 16) % 101  # the report expects results that differ
    per_class = tuple((5 + (index < extra), 10) for index in range(CLASSES))
    correct = sum(hits for hits, _ in per_class)
    evaluation = Evaluation(
        cell.dataset.name, 100 * correct / (10 * CLASSES), correct, 10 * CLASSES, 40.0, per_class, None, None
    )
    manifest = Manifest("0" * 40, False, {"python": "3"}, "none", 1, (), "2026-01-01T00:00:00+00:00")
    curves = {"train_loss": tuple(1 / epoch for epoch in range(1, 21))}
    result = Result(cell, (evaluation,), 588, Timings(0.0, 0.0, 0.0), 0.0, 40, manifest, curves, {})
    Store(settings.store_url).write_result(result)
    return CellEvent(cell, "finished")


@dataclass
class Run:
    """One run of cells.

    Attributes:
        start: seconds until the first cell had finished.
        rest: seconds from there to the end.
        cells: cells that finished.
    """

    start: float = 0.0
    rest: float = 0.0
    cells: int = 0

    @property
    def per_cell(self) -> float:
        """Milliseconds per cell after the first."""
        return 1000 * self.rest / max(1, self.cells - 1)


def on_tune(
    cells: Sequence[Cell],
    settings: RunSettings,
    runner: str = RUNNER,
    on_event: Callable[[CellEvent], Iterable[Cell] | None] = lambda event: None,
    request: Callable[[Cell], Resources] = lambda cell: Resources(),
    later: Sequence[Cell] = (),
) -> Run:
    """Run cells with ``run_cells`` until they are done, or until ``on_event`` raises ``KeyboardInterrupt``.

    Raises ``RuntimeError`` if a cell fails.
    """
    from orchestrator.execution.tune.driver import run_cells

    run, begun = Run(), time.perf_counter()

    def note(event: CellEvent) -> Iterable[Cell] | None:
        if event.kind == "failed":
            raise RuntimeError(event.error)
        if event.kind == "finished":
            run.cells += 1
            run.start = run.start or time.perf_counter() - begun
        return on_event(event)

    with suppress(KeyboardInterrupt):
        run_cells(cells, settings, note, later=later, request=request, max_attempts=3, runner=runner)
    run.rest = time.perf_counter() - begun - run.start
    return run


def bare_tune(
    items: Sequence[Any],
    work: Callable[[Any], object],
    folder: Path,
    request: Callable[[Any], dict[str, float]] | None = None,
) -> float:
    """Run ``work`` on each item with Tune as its documentation shows it; return the time when the first ended."""
    from ray import tune

    first: list[float] = []

    class Trainable(tune.Trainable):  # type: ignore[misc]
        def setup(self, config: dict[str, Any]) -> None:
            self.item = config["item"]

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.item = new_config["item"]
            return True

        def step(self) -> dict[str, Any]:
            work(self.item)
            return {"done": True}

    class FirstItem(tune.Callback):  # type: ignore[misc]
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            first.append(time.perf_counter()) if not first else None

    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"  # verbose=0 alone still prints a box
    tune.Tuner(
        tune.with_resources(Trainable, lambda config: request(config["item"])) if request else Trainable,
        param_space={"item": tune.grid_search(list(items))},
        tune_config=tune.TuneConfig(reuse_actors=True),
        run_config=tune.RunConfig(
            storage_path=str(folder / "tune"),
            verbose=0,
            callbacks=[FirstItem()],
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    ).fit()
    return first[0]


def grid(cells: Sequence[Cell], folder: Path) -> Run:
    """Run the cells with a bare ``tune.grid_search``."""
    begun, settings = time.perf_counter(), RunSettings(str(folder))
    first = bare_tune([c.to_dict() for c in cells], lambda c: record_nothing(Cell.from_dict(c), settings), folder)
    return Run(first - begun, time.perf_counter() - first, len(cells))


def pool(cells: Sequence[Cell], folder: Path) -> Run:
    """Run the cells with two actors and a queue."""
    import ray
    from ray.util import ActorPool

    @ray.remote
    class Runner:
        def run(self, cell: Cell) -> CellEvent:
            return record_nothing(cell, RunSettings(str(folder)))

    begun, first = time.perf_counter(), 0.0
    actors = ActorPool([Runner.remote() for _ in range(WORKERS)])
    for _ in actors.map_unordered(lambda actor, cell: actor.run.remote(cell), cells):
        first = first or time.perf_counter()
    return Run(first - begun, time.perf_counter() - first, len(cells))
