"""What runs in the workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import ray
from ray import tune

from orchestrator.core.cell import Cell
from orchestrator.execution.cluster import worker_log
from orchestrator.execution.local import resolve

if TYPE_CHECKING:
    from orchestrator.core.settings import RunSettings

CHUNK = 128
"""Cells travel to workers in chunks of this size, each fetched when its first cell comes up."""


@dataclass(frozen=True)
class Shared:
    """What every worker is given once: references to the chunks of cells, and how to run one."""

    chunks: tuple[ray.ObjectRef[list[Cell]], ...]
    settings: RunSettings
    runner: str
    fetched: dict[int, list[Cell]] = field(default_factory=dict)

    def cell(self, number: int) -> Cell:
        chunk = number // CHUNK
        if chunk not in self.fetched:
            self.fetched.clear()  # cells come nearly in order; one chunk at a time is enough
            self.fetched[chunk] = ray.get(self.chunks[chunk])
        return self.fetched[chunk][number % CHUNK]


class Worker(tune.Trainable):  # type: ignore[misc]
    """A worker that runs one cell per trial.

    ``setup`` is light on purpose and everything heavy is imported in the first ``step``: Tune may take a starting
    worker's trial away and give it to another that is free already, and a worker that is long in starting would
    never come to work.
    """

    def setup(self, config: dict[str, Any], shared: Shared | None = None) -> None:
        assert shared is not None
        self._shared = shared
        self._number = int(config["cell"])
        self._settings = replace(shared.settings, gpu_share=min(1.0, config["request"].get("GPU", 1.0)))

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Another cell; what it asks for is the same, or Tune would not have kept this worker for it."""
        self._number = int(new_config["cell"])
        return True

    def step(self) -> dict[str, Any]:
        outcome = resolve(self._shared.runner)(self._shared.cell(self._number), self._settings)
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


def trainable_for(cells: Sequence[Cell], settings: RunSettings, runner: str) -> type[tune.Trainable]:
    chunks = tuple(ray.put(list(cells[start : start + CHUNK])) for start in range(0, len(cells), CHUNK))
    trainable: type[tune.Trainable] = tune.with_parameters(Worker, shared=Shared(chunks, settings, runner))
    return trainable
