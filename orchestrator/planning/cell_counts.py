"""How many cells of a grid have finished, have failed and remain."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.util.units import listed, pluralize

SHOWN_DAMAGED = 6


def count_cells(total: int, done: int, todo: int, failed: int, damaged: Sequence[str]) -> str:
    """Return the counts in one line, and the damaged results in a second one if there are any.

    Args:
        todo: cells that will run. A failed cell is among them if it runs again.
        damaged: ids of cells whose result could not be read and was set aside.
    """
    line = f"{pluralize(total, 'cell')}: {done} done, {todo} to do, {failed} failed"
    if damaged:
        named = listed(damaged, SHOWN_DAMAGED)
        line += f"\n{pluralize(len(damaged), 'damaged result')} set aside, to be measured again: {named}"
    return line
