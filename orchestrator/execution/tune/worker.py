"""The trainable that runs in Tune's workers: one cell per trial."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import ray
from ray import tune

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellOutcome
from orchestrator.core.settings import RunSettings
from orchestrator.execution.process import leave_out_triton, worker_log

CHUNK = 128
"""Cells are sent to workers in chunks of this size. A worker fetches a chunk when it runs the first cell of it."""


class Worker(tune.Trainable):  # type: ignore[misc]
    """A worker that runs one cell per trial.

    ``setup`` is light on purpose, and heavy modules are imported in the first ``step``. Tune may give the trial of a
    starting worker to another one that is free already. A worker that starts slowly would then never get a trial.
    """

    def setup(
        self,
        config: dict[str, Any],
        chunks: Sequence[ray.ObjectRef[list[Cell]]],
        settings: RunSettings,
        runner: str,
    ) -> None:
        if not config["gpus"]:
            leave_out_triton()
        self._chunks, self._runner = chunks, runner
        self._settings = replace(settings, gpu_share=min(1.0, config["gpus"] or 1.0))
        self._number = int(config["cell"])
        self._fetched, self._cells = -1, list[Cell]()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another cell. It has the same request, or Tune would not have reused this worker for it."""
        self._number = int(new_config["cell"])
        return True

    def step(self) -> dict[str, Any]:
        run: Callable[[Cell, RunSettings], CellOutcome] = pkgutil.resolve_name(self._runner)
        chunk, place = divmod(self._number, CHUNK)
        if chunk != self._fetched:  # cells come nearly in order, so a worker keeps one chunk at a time
            self._fetched, self._cells = chunk, ray.get(self._chunks[chunk])
        outcome = run(self._cells[place], self._settings)
        return {"outcome": asdict(outcome), "log": worker_log(), "done": True}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([{"CPU": config["cpus"], "GPU": config["gpus"]}])
