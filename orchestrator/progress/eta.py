"""Estimates when a run ends, by simulating the waiting work on the slots. Pure arithmetic, no clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

from orchestrator.planning.cost import Work

OVERDUE = 0.1
"""Work that has taken longer than predicted is assumed to need this share of its age on top."""


class Prediction(NamedTuple):
    """How long work should take, in seconds, and the share of that (0 to 1) that rests on measurements."""

    seconds: float
    measured: float


class Running(NamedTuple):
    """A piece of work under way: its age in seconds and, where its builder tells, the share of it that is done."""

    work: Work
    age: float
    share_done: float | None = None

    def remaining(self, whole: Prediction) -> Prediction:
        """The time it still needs, above zero: by the share that is done where it is known, else by ``whole``."""
        if self.share_done:
            return Prediction(self.age * (1 - self.share_done) / self.share_done, 1.0)
        return Prediction(max(whole.seconds - self.age, OVERDUE * self.age), whole.measured)


def schedule(remaining: Iterable[float], lengths: Iterable[float], slots: int) -> float:
    """Seconds until the last piece of work ends, when each waiting one takes the first slot that becomes free.

    Args:
        remaining: seconds that the pieces under way still need.
        lengths: seconds of the waiting ones, in the order they will start.
    """
    free = sorted(remaining)
    free = [0.0] * (max(slots, 1) - len(free)) + free
    for length in lengths:
        heapq.heapreplace(free, free[0] + length)
    return max(free)


def eta(
    waiting: Iterable[Work],
    running: Iterable[Running],
    predict: Callable[[Work], Prediction],
    *,
    slots: int,
    overhead: float = 1.0,
) -> Prediction:
    """When all of the work is done, in seconds of wall clock from now.

    Args:
        waiting: what has not started, in the order it will.
        predict: how long a piece of work should take.
        overhead: wall clock per second of work on a slot, 1 where no time is lost between pieces.
    """
    predict = cache(predict)  # many cells are alike: they differ in their seed only
    lengths = [predict(work) for work in waiting]
    remaining = [one.remaining(predict(one.work)) for one in running]
    pieces = [*lengths, *remaining]
    total = sum(piece.seconds for piece in pieces)
    if total:
        share = sum(piece.seconds * piece.measured for piece in pieces) / total
    else:  # no work, or work without counted operations and without measurements
        share = min((piece.measured for piece in pieces), default=1.0)
    end = schedule((piece.seconds for piece in remaining), (piece.seconds for piece in lengths), slots)
    return Prediction(overhead * end, share)
