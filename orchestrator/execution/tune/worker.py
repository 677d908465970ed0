"""The trainable that runs one cell per trial in Tune's workers. Finds in Ray's error text how a worker ended."""

import pkgutil
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
from ray import tune

from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, FailureKind
from orchestrator.core.settings import RunSettings
from orchestrator.execution.process import worker_log
from orchestrator.util.errors import one_line

_DIED = ("The actor died unexpectedly", "The actor died because")

CHUNK = 128
"""Cells are sent to workers in chunks of this size. A worker holds one chunk, and fetches another one when it gets a
cell of that chunk."""


class Worker(tune.Trainable):  # type: ignore[misc]
    """A worker that runs one cell per trial.

    While a worker starts, Tune may give its trial to another worker that is free. So a worker that starts slowly might
    never get a trial. Therefore ``setup`` is light, and the first ``step`` imports the heavy modules.
    """

    def setup(
        self, config: dict[str, Any], chunks: Sequence[ray.ObjectRef[list[Cell]]], settings: RunSettings, runner: str
    ) -> None:
        self._chunks, self._runner = chunks, runner
        self._settings = replace(settings, gpu_share=min(1.0, config["gpus"] or 1.0))
        self._number = int(config["cell"])
        self._fetched, self._cells = -1, list[Cell]()

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Take another cell. Tune reuses a worker only for cells that request the same CPUs and GPUs."""
        self._number = int(new_config["cell"])
        return True

    def step(self) -> dict[str, Any]:
        run: Callable[[Cell, RunSettings], CellEvent] = pkgutil.resolve_name(self._runner)
        chunk, index = divmod(self._number, CHUNK)
        if chunk != self._fetched:  # cells come nearly in order, so a worker keeps one chunk at a time
            self._fetched, self._cells = chunk, ray.get(self._chunks[chunk])
        return {"event": replace(run(self._cells[index], self._settings), log=worker_log()), "done": True}

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> tune.PlacementGroupFactory:
        return tune.PlacementGroupFactory([{"CPU": config["cpus"], "GPU": config["gpus"]}])


def cannot_start(text: str) -> bool:
    """Return whether the worker failed in its constructor, so that no worker can start at all."""
    return "raised in its creation task" in text


def worker_died(text: str) -> bool:
    """Return whether the worker's process ended or could not be reached; false for an exception that it raised."""
    return text.startswith(_DIED) or (text.startswith("The actor ") and "is unavailable:" in text.partition("\n")[0])


def node_lost(text: str) -> bool:
    """Return whether a worker was lost because its node died or could not be reached."""
    return worker_died(text) and ("node has died" in text or "is unavailable:" in text)


def failure(cell: Cell, text: str, kernel_killed: bool) -> CellEvent:
    """Return the failure of a cell whose runner has raised or whose worker has died. ``text``: Tune's report of it.

    The cause is taken to be a lack of main memory if Ray reports this, or if the worker died and ``kernel_killed`` is
    true. ``kernel_killed`` says that this machine's kernel has just killed a process for lack of memory, which may be
    another process than the worker. The kernels of other machines are not asked.
    """
    by_ray = "low on memory" in text or "OutOfMemoryError" in text.partition("\n")[0]
    problem: FailureKind = "main_memory" if by_ray or (kernel_killed and worker_died(text)) else ""
    line, retryable = failure_line(text), not problem and worker_died(text)
    return CellEvent(cell, "failed", error=line, problem=problem, traceback=text, recorded=False, retryable=retryable)


def oom_kill_count() -> int:
    """Return the number of processes that this machine's kernel has killed for lack of memory since its start."""
    with suppress(OSError):
        if found := re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE):
            return int(found[1])
    return 0


def failure_line(text: str) -> str:
    """Return one line for a failure that Tune reports as ``text``: the runner's exception, or how the worker died."""
    lines = [line for line in text.splitlines() if line.strip()]
    if worker_died(text) and not cannot_start(text):
        report = [line for line in lines if not line.startswith("\t")]
        return one_line("the worker process died: " + " ".join(report[1:] or report))
    return one_line(lines[-1] if lines else "unknown")  # a remote traceback ends with the exception
