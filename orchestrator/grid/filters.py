"""``--only key=value,value``: keep the cells that match every key."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from orchestrator.core.cell import Cell
from orchestrator.tracks import TRACKS
from orchestrator.util.errors import UserError, shorten, unknown_name

Label = Callable[[Cell], str]

_READERS: dict[str, Callable[[Cell, Label], str]] = {
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


def only(cells: Sequence[Cell], options: Iterable[str], label: Label) -> tuple[Cell, ...]:
    """The cells that match.

    Values of one key are alternatives, different keys must all match. A cell without k or seed (a method that looks
    at no support) passes every filter on them, so that baselines stay beside what they are compared with.

    Raises:
        UserError: an unknown key, a value that no cell has (with the nearest ones), or nothing left.
    """
    wanted: dict[str, list[str]] = {}
    for option in options:
        key, equals, text = option.partition("=")
        key, values = key.strip(), [value.strip() for value in text.split(",") if value.strip()]
        where = f"--only {shorten(option)}"
        if not equals or not values:
            raise UserError("not of the form key=value,value", where=where, hint="for example --only method=bolt")
        if key not in _READERS:
            raise unknown_name("key", key, _READERS, where=where)
        present = {_READERS[key](cell, label) for cell in cells}
        for value in values:
            if value not in present:
                raise unknown_name(key, value, present, where=where)
        wanted.setdefault("shots" if key == "k" else key, []).extend(values)
    kept = tuple(cell for cell in cells if all(_matches(cell, key, values, label) for key, values in wanted.items()))
    if not kept:
        raise UserError(
            "no cell of the grid matches all of these", where=shorten(" ".join(f"--only {o}" for o in options))
        )
    return kept


def _matches(cell: Cell, key: str, values: Sequence[str], label: Label) -> bool:
    free = (key == "shots" and cell.shots == 0 and TRACKS[cell.track].gives_support) or (
        key == "seed" and cell.seed == 0
    )
    return free or _READERS[key](cell, label) in values
