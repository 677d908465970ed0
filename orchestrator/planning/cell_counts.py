"""The counts of finished, failed and open cells as a sentence."""

from collections.abc import Sequence

from orchestrator.util.units import listed, pluralize

SHOWN_DAMAGED = 6


def count_cells(total: int, done: int, todo: int, failed: int, damaged: Sequence[str], left_out: int = 0) -> str:
    """Return the counts in one line, and the damaged results in a second line if there are any.

    Args:
        todo: number of cells that will run, including failed cells that are retried.
        damaged: ids of the cells whose damaged results were set aside.
        left_out: number of cells that a race has left out.
    """
    line = f"{pluralize(total, 'cell')}: {done} done, {todo} to do, {failed} failed"
    line += f", {left_out} left out by the race" if left_out else ""
    return "\n".join(filter(None, (line, damaged_sentence(damaged))))


def damaged_sentence(damaged: Sequence[str]) -> str:
    """Return a sentence about the cells whose damaged results were set aside; empty if there are none."""
    what = f"{pluralize(len(damaged), 'damaged result')} set aside, to be measured again"
    return f"{what}: {listed(damaged, SHOWN_DAMAGED)}" if damaged else ""
