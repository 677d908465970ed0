"""The cells of a grid compared with a store. Only the ids of the cells are needed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from orchestrator.planning.cell_counts import CellCounts
from orchestrator.store import Store
from orchestrator.store.results import Failure


@dataclass(frozen=True)
class GridState:
    """How far a grid is.

    Attributes:
        name, title: of the grid.
        counts: its cells by their state.
        failed: the recorded failures of unfinished cells.
    """

    name: str
    title: str
    counts: CellCounts
    failed: tuple[Failure, ...]


def read_grid_state(store: Store, name: str, title: str, cell_ids: Collection[str]) -> GridState:
    """Look up the result or failure of every cell. Damaged results are moved aside; nothing else changes."""
    results, damaged = store.read_results_by_id(cell_ids)
    recorded = store.read_failures()
    for result in results:
        recorded.pop(result.cell.id, None)
    failed = tuple(recorded[cell_id] for cell_id in cell_ids if cell_id in recorded)
    final = sum(not failure.again for failure in failed)
    todo = len(cell_ids) - len(results) - final
    return GridState(name, title, CellCounts(len(cell_ids), len(results), todo, len(failed), tuple(damaged)), failed)
