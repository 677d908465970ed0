"""How long the open cells will take, from how long finished ones took. Pure arithmetic."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from orchestrator.cell import Cell

Kind = tuple[str, str, int]
"""Backbone, method, shots: what a cell's duration depends on most."""


def kind_of(cell: Cell) -> Kind:
    """The kind of a cell."""
    return cell.backbone.name, cell.method.name, cell.shots


@dataclass
class Durations:
    """Running means of seconds per cell: of its kind, else of its backbone and method, its method, or of all."""

    _sums: dict[tuple[str | int, ...], tuple[float, int]] = field(default_factory=lambda: defaultdict(lambda: (0.0, 0)))

    def add(self, kind: Kind, seconds: float) -> None:
        """Count a finished cell."""
        backbone, method, _ = kind
        for key in (kind, (backbone, method), (method,), ()):
            total, count = self._sums[key]
            self._sums[key] = (total + seconds, count + 1)

    def expected(self, kind: Kind) -> float | None:
        """The mean of the closest relatives that were measured; ``None`` before anything was."""
        backbone, method, _ = kind
        for key in (kind, (backbone, method), (method,), ()):
            if key in self._sums:
                total, count = self._sums[key]
                return total / count
        return None


def work_left(
    waiting: Mapping[Kind, int], running: Iterable[tuple[Kind, float]], durations: Durations
) -> tuple[float, float] | None:
    """Seconds of work in the cells to come and in what is left of those under way, and the longest such rest.

    Args:
        waiting: how many cells of each kind have not begun.
        running: kind and age in seconds of each cell under way.
        durations: what was measured.

    ``None`` before anything was measured.
    """
    rests = []
    for kind, age in running:
        expected = durations.expected(kind)
        if expected is None:
            return None
        rests.append(max(0.0, expected - age))
    total = sum(rests)
    for kind, count in waiting.items():
        if count:
            expected = durations.expected(kind)
            if expected is None:
                return None
            total += count * expected
    return total, max(rests, default=0.0)


def eta_seconds(
    waiting: Mapping[Kind, int],
    running: Iterable[tuple[Kind, float]],
    durations: Durations,
    *,
    pace: float,
) -> float | None:
    """Wall-clock seconds until all is done.

    Args:
        pace: seconds of cells done per second of wall clock: the number of places at work, less what is lost
            between cells.

    ``None`` before anything was measured. Never less than what the cell that has longest to go still needs.
    """
    left = work_left(waiting, running, durations)
    if left is None or pace <= 0:
        return None
    total, longest = left
    return max(total / pace, longest)


def in_words(seconds: float | None) -> str:
    """A duration for people: ``45 s``, ``12 min``, ``3 h 05 min``, ``2 d 4 h``; ``unknown`` for ``None``."""
    if seconds is None:
        return "unknown"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
