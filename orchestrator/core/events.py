"""Events of a run, and the resources of a cell. Plain data, without Ray or torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.cell import Cell

OnProgress = Callable[[int, int], None]
"""A function that is called as ``on_progress(done, total)`` with two counts. ``total`` is 0 while it is unknown."""


@dataclass(frozen=True)
class Resources:
    """Numbers of processors and GPUs, which a cell reserves or a node has.

    Attributes:
        cpus: logical CPUs; fractions are allowed.
        gpus: GPUs; a fraction below one, or a whole number.
    """

    cpus: float = 1.0
    gpus: float = 0.0


FailureKind = Literal["", "gpu_memory", "main_memory", "store"]
"""Cause of a failure: the cell itself (empty), too little memory, or an unusable store."""


@dataclass(frozen=True, kw_only=True)
class _Event:
    """Facts about a cell or a task that has ended. An event of the kind ``started`` has the default values.

    Attributes:
        seconds: wall-clock seconds in the worker; 0 if unknown.
        error: the reason in one line, if the cell or task failed or was skipped.
        problem: a cause outside of the cell or task: an unusable store, or too little memory. Another attempt may get
            more memory.
        traceback: the traceback, if there was a failure that the worker has not recorded.
        log: path of the worker's log on the worker's machine; empty if unknown.
        retryable: whether another attempt makes sense, because the worker crashed or an input was damaged.
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

    Every cell ends with exactly one ``finished`` or ``failed``. ``started`` comes once per attempt. There are several
    attempts if the worker crashed or ran out of memory.

    Attributes:
        attempt: 1 for the first attempt.
        recorded: whether the worker wrote the result or the failure to the store. If ``False``, the receiver of the
            event must record the failure.
        gpu_mib: the most GPU memory that the worker's process held, in MiB; 0 if it used none, or if that is unknown.
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


OnCellEvent = Callable[[CellEvent], Iterable[Cell] | None]
"""A listener to the events of cells. It may return further cells to run."""


@dataclass(frozen=True)
class TaskEvent(_Event):
    """A task started, finished, failed or was skipped. A task ends with exactly one of the last three events.

    Attributes:
        key: key of the task: the address of the artifact that the task builds.
        kind: ``started`` when a worker gets the task, ``skipped`` when a dependency of the task failed.
        failed_dependency: for a skipped task, the task whose failure caused it.
    """

    key: str
    kind: Literal["started", "finished", "failed", "skipped"]
    failed_dependency: str = ""
