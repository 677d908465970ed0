"""Lists the cells of a grid: which have finished, with which accuracy, and which have failed, with which error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.core.cell import Cell
from orchestrator.grid import Grid
from orchestrator.store import Store
from orchestrator.store.results import Failure, Result

State = Literal["finished", "failed", "open"]


@dataclass(frozen=True)
class ListedCell:
    """A cell of a grid with its label there, and its result or its recorded failure, if it has one."""

    cell: Cell
    label: str
    result: Result | None
    failure: Failure | None

    @property
    def state(self) -> State:
        """``open`` if the cell has neither a result nor a recorded failure."""
        if self.result is not None:
            return "finished"
        return "open" if self.failure is None else "failed"

    @property
    def accuracy(self) -> float | None:
        """Accuracy on the target, or the mean over the scored datasets, per cent; ``None`` without a result."""
        return self.result.accuracies[0] if self.result else None

    def record(self) -> dict[str, Any]:
        """Return the fields that ``cells --json`` prints. Numbers of the result are ``None`` if there is none."""
        cell, result, failure = self.cell, self.result, self.failure
        return {
            "id": cell.id,
            "state": self.state,
            "track": cell.track,
            "protocol": cell.protocol.name,
            "backbone": cell.backbone.name,
            "domain": cell.domain,
            "dataset": cell.dataset.name,
            "k": cell.shots,
            "method": cell.method.name,
            "label": self.label,
            "seed": cell.seed,
            "settings": cell.method.settings_dict(),
            "accuracy": self.accuracy,
            "accuracy_zero_shot": result.accuracies[1] if result else None,
            "accuracy_by_dataset": {e.dataset: e.accuracy for e in result.evaluations} if result else None,
            "trainable_parameters": result.trainable_parameters if result else None,
            "seconds": result.timings.total if result else None,
            "peak_memory_mib": result.peak_memory_mib if result else None,
            "finished_at": result.manifest.finished_at if result else None,
            "error": failure.error if failure else None,
            "attempts": failure.attempts if failure else None,
            "log": failure.log if failure else None,
        }


def list_cells(grid: Grid, cells: Sequence[Cell], store: Store) -> list[ListedCell]:
    """Look up the result or failure of each cell. A damaged result is moved aside, and its cell is open again."""
    done, failed, _ = store.read_outcomes([cell.id for cell in cells])
    results, failures = {result.cell.id: result for result in done}, {failure.id: failure for failure in failed}
    return [ListedCell(cell, grid.label(cell), results.get(cell.id), failures.get(cell.id)) for cell in cells]
