"""The trainable that runs in Tune's workers: one cell per trial."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from orchestrator.core.cell import Cell
from orchestrator.execution.process import worker_log

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings
    from orchestrator.execution.local import Runner

CHUNK = 128
"""Cells are sent to workers in chunks of this size. A worker fetches a chunk when it runs the first cell of it."""


@dataclass(frozen=True)
class WorkerInput:
    """What every worker is given once: the cells, as references to chunks of them, and how to run one."""

    chunks: tuple[ray.ObjectRef[list[Cell]], ...]
    settings: RunSettings
    runner: str
    fetched: dict[int, list[Cell]] = field(default_factory=dict)

    def cell(self, number: int) -> Cell:
        """The cell with this number."""
        chunk = number // CHUNK
        if chunk not in self.fetched:
            self.fetched.clear()  # cells come nearly in order, so one chunk at a time is enough
            self.fetched[chunk] = ray.get(self.chunks[chunk])
        return self.fetched[chunk][number % CHUNK]


class Worker(tune.Trainable):  # type: ignore[misc]
    """A worker that runs one cell per trial.

    ``setup`` is light on purpose, and heavy modules are imported in the first ``step``. Tune may give the trial of a
    starting worker to another one that is free already. A worker that starts slowly would then never get a trial.
    """

    def setup(self, config: dict[str, Any], worker_input: WorkerInput | None = None) -> None:
        assert worker_input is not None
        self._input = worker_input
        self._number = int(config["cell"])
        self._settings = replace(worker_input.settings, gpu_share=min(1.0, config["request"].get("GPU", 1.0)))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another cell. It has the same request, or Tune would not have reused this worker for it."""
        self._number = int(new_config["cell"])
        return True

    def step(self) -> dict[str, Any]:
        run: Runner = pkgutil.resolve_name(self._input.runner)
        outcome = run(self._input.cell(self._number), self._settings)
        return {
            "outcome": outcome.status,
            "outcome_seconds": outcome.seconds,
            "outcome_error": outcome.error,
            "outcome_problem": outcome.problem,
            "outcome_traceback": outcome.traceback,
            "outcome_gpu_mib": outcome.gpu_mib,
            "outcome_log": worker_log(),
            "done": True,
        }

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([dict(config["request"])])


def make_trainable(cells: Sequence[Cell], settings: RunSettings, runner: str) -> type[tune.Trainable]:
    """The trainable for these cells, which are put into Ray's object store."""
    chunks = tuple(ray.put(list(cells[start : start + CHUNK])) for start in range(0, len(cells), CHUNK))
    worker_input = WorkerInput(chunks, settings, runner)
    trainable: type[tune.Trainable] = tune.with_parameters(Worker, worker_input=worker_input)
    return trainable
