"""How an attempt at a cell ended, as a worker tells the driver. It is imported without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.store.errors import FailureKind


@dataclass(frozen=True)
class CellOutcome:
    """How one attempt at a cell ended. The store has its result or its failure, unless ``problem`` says why not.

    Attributes:
        error: one line, empty if the cell finished.
        problem: why nothing was recorded: too little memory, which another attempt may have, or an unusable store.
        traceback: of the error, if nothing was recorded.
        gpu_mib: the most memory that torch reserved on a GPU, in MiB; 0 without one.
    """

    status: Literal["finished", "failed"]
    seconds: float
    error: str = ""
    problem: FailureKind = ""
    traceback: str = ""
    gpu_mib: float = 0.0
