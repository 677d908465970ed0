"""``--only key=value,value``: select the cells that match every key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.cell import Cell
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError, shorten, unknown_name

LabelOf = Callable[[Cell], str]

_KEYS: dict[str, Callable[[Cell, LabelOf], str]] = {
    "track": lambda cell, label: cell.track,
    "backbone": lambda cell, label: cell.backbone.name,
    "domain": lambda cell, label: cell.domain,
    "dataset": lambda cell, label: cell.dataset.name,
    "shots": lambda cell, label: str(cell.shots),
    "k": lambda cell, label: str(cell.shots),
    "method": lambda cell, label: cell.method.name,
    "label": lambda cell, label: label(cell),
    "seed": lambda cell, label: str(cell.seed),
    "protocol": lambda cell, label: cell.protocol.name,
}
"""The keys of ``--only``, and what a cell has under each."""


def select_cells(
    cells: tuple[Cell, ...], options: Sequence[str], label: LabelOf, option: str = "--only "
) -> tuple[Cell, ...]:
    """The cells that match every key; the values of one key are alternatives.

    A method without a support has neither k nor seed. Its cells pass every filter on these, so that baselines stay
    beside the methods that they are compared with.

    Args:
        options: ``key=value,value``, one for each option given.
        label: a cell's label in the grid.
        option: what stands before the key on the command line; errors begin with it.

    Raises ``UserError`` for an unknown key, for a value that no cell has, or if no cell matches.
    """
    wanted: dict[str, list[str]] = {}
    for text in options:
        key, equals, listed = text.partition("=")
        key, values = key.strip(), [value.strip() for value in listed.split(",") if value.strip()]
        where = f"{option}{shorten(text)}"
        if not equals or not values:
            raise UserError("not of the form key=value,value", where=where, hint=f"for example {option}method=bolt")
        if key not in _KEYS:
            raise unknown_name("key", key, _KEYS, where=where)
        present = {_KEYS[key](cell, label) for cell in cells}
        for value in values:
            if value not in present:
                raise unknown_name(key, value, present, where=where)
        wanted.setdefault("shots" if key == "k" else key, []).extend(values)

    def matches(cell: Cell, key: str) -> bool:
        without_shots = cell.shots == 0 and TRACKS[cell.track].gives_support
        if (key == "shots" and without_shots) or (key == "seed" and cell.seed == 0):
            return True
        return _KEYS[key](cell, label) in wanted[key]

    selected = tuple(cell for cell in cells if all(matches(cell, key) for key in wanted))
    if not selected:
        where = shorten(" ".join(f"{option}{text}" for text in options))
        raise UserError("no cell of the grid matches all of these", where=where)
    return selected
