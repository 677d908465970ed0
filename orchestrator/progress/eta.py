"""Estimates when a run ends, by simulating the waiting work on the slots. Pure arithmetic, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

OVERDUE = 0.1
"""Work that has taken longer than predicted is assumed to need this share of its age on top."""


class Prediction(NamedTuple):
    """How long work should take, in seconds, and the share of that (0 to 1) that rests on measurements."""

    seconds: float
    measured: float


def remaining(whole: Prediction, age: float, share_done: float | None = None) -> Prediction:
    """Return the seconds that work still needs which has been under way for ``age`` seconds.

    If ``share_done`` is known and not 0, the rest takes as long in proportion. Otherwise it is what is left of
    ``whole``, but at least ``OVERDUE * age``.
    """
    if share_done:
        return Prediction(age * (1 - share_done) / share_done, 1.0)
    return Prediction(max(whole.seconds - age, OVERDUE * age), whole.measured)


def schedule(running: Iterable[float], lengths: Iterable[float], slots: int) -> float:
    """Seconds until the last piece of work ends, when each waiting one takes the first slot that becomes free.

    ``running``: seconds that the pieces under way still need. ``lengths``: seconds of the waiting ones, in order.
    """
    free = sorted(running)
    free = [0.0] * (max(slots, 1) - len(free)) + free
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def eta(waiting: list[Prediction], running: list[Prediction], *, slots: int, overhead: float = 1.0) -> Prediction:
    """When all of the work is done, in seconds of wall clock from now.

    Args:
        waiting: for what has not started, in the order it will.
        running: for what is under way: the time it still needs.
        overhead: wall clock per second of work on a slot, 1 where no time is lost between pieces.
    """
    pieces = [*waiting, *running]
    total = sum(piece.seconds for piece in pieces)
    if total:
        share = sum(piece.seconds * piece.measured for piece in pieces) / total
    else:  # no work, or work without counted operations and without measurements
        share = min((piece.measured for piece in pieces), default=1.0)
    end = schedule((piece.seconds for piece in running), (piece.seconds for piece in waiting), slots)
    return Prediction(overhead * end, share)
