"""Events of a run, and the resources of a cell. Plain data, without Ray or torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.cell import Cell

OnProgress = Callable[[int, int], None]
"""Called with the number of things that are done and the number of all; the latter is 0 while it is not known."""


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


@dataclass(frozen=True)
class CellEvent:
    """A cell started, finished or failed.

    Every cell ends in exactly one ``finished`` or ``failed``. ``started`` comes once per attempt: more than once for a
    cell whose worker crashed or that ran out of memory.

    Attributes:
        seconds: wall-clock seconds the cell took in the worker; 0 when unknown.
        error: one line; empty unless the cell failed.
        problem: why the worker recorded no failure: too little memory, which another attempt may have, or an unusable
            store.
        traceback: the traceback, if the worker has not recorded it.
        log: path of the worker's log on the worker's machine; empty if unknown.
        attempt: 1 for the first attempt.
        recorded: whether the worker wrote the result or the failure to the store. If ``False``, the receiver of the
            event must record the failure.
        retryable: whether a failed cell may be run again, because its worker crashed and the cell is not the cause.
        gpu_mib: the most GPU memory that the worker's process held, in MiB; 0 if it used none or it is unknown.
    """

    cell: Cell
    kind: Literal["started", "finished", "failed"]
    seconds: float = 0.0
    error: str = ""
    problem: FailureKind = ""
    traceback: str = ""
    log: str = ""
    attempt: int = 1
    recorded: bool = True
    retryable: bool = False
    gpu_mib: float = 0.0

    @property
    def key(self) -> str:
        """The id of the cell, as the key of a :class:`TaskEvent` is the address of an artifact."""
        return self.cell.id


@dataclass(frozen=True)
class TaskEvent:
    """A task started, finished, failed or was skipped; each ends in exactly one of the last three.

    Attributes:
        kind: ``started`` when a worker gets the task; ``skipped`` when a task that it depends on failed.
        error: one line, if it failed or was skipped.
        traceback: the traceback, if it failed.
        seconds: wall-clock seconds in the worker.
        log: path of the worker's log on the worker's machine; empty if there is none.
        failed_dependency: for a skipped task, the task whose failure caused it.
        retryable: whether a failed task may be run again, because its worker crashed or an input was damaged.
        store_failed: whether the task failed because the store cannot be used.
    """

    key: str
    kind: Literal["started", "finished", "failed", "skipped"]
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    log: str = ""
    failed_dependency: str = ""
    retryable: bool = False
    store_failed: bool = False
