"""Events of a run, and the resources of a cell. Plain data, without Ray or torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.cell import Cell

OnProgress = Callable[[int, int], None]
"""``on_progress(done, total)`` is called with two counts; ``total`` is 0 while it is not known."""


@dataclass(frozen=True)
class Resources:
    """Processors and GPUs: what a cell reserves while it runs, or what the nodes have that a cluster can start.

    Attributes:
        cpus: logical CPUs; fractions are allowed.
        gpus: GPUs; a fraction below one, or a whole number.
    """

    cpus: float = 1.0
    gpus: float = 0.0


FailureKind = Literal["", "gpu_memory", "main_memory", "store"]
"""What caused a failure: the cell itself (empty), too little memory, or a store that cannot be used."""


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Facts about a cell or a task that has ended.

    Attributes:
        seconds: wall-clock seconds in the worker; 0 when unknown.
        error: one line, if it failed or was skipped.
        problem: a cause outside the cell or the task: too little memory, which another attempt may have, or an unusable
            store.
        traceback: the traceback, if it failed and the worker has not recorded the failure.
        log: path of the worker's log on the worker's machine; empty if unknown.
        retryable: whether it may be run again, because its worker crashed or an input was damaged.
    """

    seconds: float = 0.0
    error: str = ""
    problem: FailureKind = ""
    traceback: str = ""
    log: str = ""
    retryable: bool = False


@dataclass(frozen=True)
class CellEvent(_Event):
    """A cell started, finished or failed.

    Every cell ends in exactly one ``finished`` or ``failed``. ``started`` comes once per attempt: more than once for a
    cell whose worker crashed or that ran out of memory.

    Attributes:
        attempt: 1 for the first attempt.
        recorded: whether the worker wrote the result or the failure to the store. If ``False``, the receiver of the
            event must record the failure.
        gpu_mib: the most GPU memory that the worker's process held, in MiB; 0 if it used none or it is unknown.
    """

    cell: Cell
    kind: Literal["started", "finished", "failed"]
    attempt: int = 1
    recorded: bool = True
    gpu_mib: float = 0.0

    @property
    def key(self) -> str:
        """The id of the cell."""
        return self.cell.id


@dataclass(frozen=True)
class TaskEvent(_Event):
    """A task started, finished, failed or was skipped; each ends in exactly one of the last three.

    Attributes:
        key: of the task; the address of the artifact that it builds.
        kind: ``started`` when a worker gets the task; ``skipped`` when a task that it depends on failed.
        failed_dependency: for a skipped task, the task whose failure caused it.
    """

    key: str
    kind: Literal["started", "finished", "failed", "skipped"]
    failed_dependency: str = ""
