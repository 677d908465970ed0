"""How many cells of a grid have finished, have failed and remain."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.util.units import listed, pluralize

SHOWN_DAMAGED = 6


@dataclass(frozen=True)
class CellCounts:
    """The cells of a grid, counted by their state in a store.

    Attributes:
        todo: cells that will run. A failed cell is among them if it runs again.
        damaged: ids of cells whose result could not be read and was set aside.
    """

    total: int
    done: int
    todo: int
    failed: int
    damaged: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The counts in one line, and the damaged results in a second one if there are any."""
        line = f"{pluralize(self.total, 'cell')}: {self.done} done, {self.todo} to do, {self.failed} failed"
        if self.damaged:
            named = listed(self.damaged, SHOWN_DAMAGED)
            line += f"\n{pluralize(len(self.damaged), 'damaged result')} set aside, to be measured again: {named}"
        return line
