"""What the engine says while cells run, and what a cell asks for. Plain data: no Ray, no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.core.cell import Cell


@dataclass(frozen=True)
class Resources:
    """What one cell occupies while it runs.

    Attributes:
        cpus: logical CPUs; fractions are allowed.
        gpus: GPUs; a fraction below one, or a whole number.
        memory: bytes of main memory to set aside, 0 for no reservation.
    """

    cpus: float = 1.0
    gpus: float = 0.0
    memory: int = 0

    def __post_init__(self) -> None:
        if self.cpus < 0 or self.gpus < 0 or self.memory < 0 or self.cpus + self.gpus == 0:
            raise ValueError(f"a cell needs a part of a CPU or a GPU, and nothing negative: {self}")
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise ValueError(f"more than one GPU must be a whole number, not {self.gpus}")


@dataclass(frozen=True)
class CellEvent:
    """Something happened to a cell.

    Every cell ends in exactly one ``finished`` or ``failed``. ``started`` comes once per attempt, so more than once
    for a cell whose worker died, or that had too little memory.

    Attributes:
        cell: which one.
        kind: what happened.
        seconds: wall-clock seconds the cell took, in the worker; 0 when unknown.
        error: one line, empty unless failed.
        traceback: the whole story where the driver knows it.
        log: path of the worker's log on the machine it ran on, empty if unknown.
        attempt: 1 for the first try.
        recorded: the runner itself has written the outcome to the store. ``False`` when it could not - its process
            died, or it raised - so that whoever listens has to record the failure.
        again: when failed, it was not the cell's own fault: its worker died.
        gpu_mib: the most memory its process held of a GPU, 0 where it had none or did not say.
    """

    cell: Cell
    kind: Literal["started", "finished", "failed"]
    seconds: float = 0.0
    error: str = ""
    traceback: str = ""
    log: str = ""
    attempt: int = 1
    recorded: bool = True
    again: bool = False
    gpu_mib: float = 0.0


@dataclass(frozen=True)
class TaskEvent:
    """Something happened to a task; each ends in exactly one ``finished``, ``failed`` or ``skipped``.

    Attributes:
        key: which task.
        kind: ``started`` when handed out; ``skipped`` when a task it needs failed.
        value: what the function returned, when finished.
        error: one line, when failed or skipped.
        traceback: the whole story, when failed.
        seconds: wall-clock seconds in the worker.
        log: path of the worker's log on the machine it ran on, empty if there is none.
        failed_dependency: the failed task at the root, when skipped.
        again: when failed, it was not the task's own fault: its worker died, or an input was damaged.
        store_failed: when failed, it was because the store cannot be used.
    """

    key: str
    kind: Literal["started", "finished", "failed", "skipped"]
    value: Any = None
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    log: str = ""
    failed_dependency: str = ""
    again: bool = False
    store_failed: bool = False
