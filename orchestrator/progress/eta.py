"""When a run will be done: plays the waiting work through on the slots there are. Pure arithmetic, no clock."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from orchestrator.planning.cost import Work

OVERDUE = 0.1
"""Work that has taken longer than predicted is assumed to need this share of its age on top."""

SCHEDULED, SCHEDULED_PER_SLOT = 256, 4
"""At least this many of the last waiting pieces of work are put on slots one by one; those before fill all slots."""


class Prediction(NamedTuple):
    """How long a piece of work should take, in seconds, and whether that rests on a measurement."""

    seconds: float
    measured: bool


Predict = Callable[[Work], Prediction]


class Running(NamedTuple):
    """A piece of work under way: its age in seconds and, where its builder tells, the share of it that is done."""

    work: Work
    age: float
    share_done: float | None = None

    def remaining(self, predicted: float) -> float:
        """Seconds that it still needs, always more than none.

        Follows from the share that is done where that is known, else from the prediction for the whole.
        """
        if self.share_done:
            return self.age * (1 - self.share_done) / self.share_done
        return max(predicted - self.age, OVERDUE * self.age)


class WaitingWork:
    """Work that has not started, in the order it will. Knows the sum of durations without going through all of it.

    Args:
        work: by name, in that order.
    """

    def __init__(self, work: Mapping[str, Work]) -> None:
        self._work = dict(work)
        self._count: dict[Hashable, int] = defaultdict(int)
        self._sum: dict[Hashable, Work] = {}
        for one in self._work.values():
            self._add(one, 1)

    def __len__(self) -> int:
        return len(self._work)

    def start(self, name: str) -> None:
        """A piece of work waits no longer; one that has started before is ignored."""
        work = self._work.pop(name, None)
        if work is not None:
            self._add(work, -1)

    def _add(self, work: Work, count: int) -> None:
        key = (work.groups, work.shots)
        before = self._sum[key].gflop if key in self._sum else 0.0
        self._count[key] += count
        self._sum[key] = work._replace(gflop=before + count * work.gflop)
        if not self._count[key]:
            del self._count[key], self._sum[key]  # the rounding error of the sum goes with the last piece

    def last(self, count: int) -> list[Work]:
        """The last ``count`` pieces, in order."""
        return list(islice(reversed(self._work.values()), count))[::-1]

    def seconds(self, predict: Predict) -> tuple[float, float]:
        """What all of it takes one after the other, and how much of that rests on measurements."""
        total = measured = 0.0
        for key, work in self._sum.items():
            # Where there are operations, durations are in proportion to them, so the sums are as well.
            prediction = predict(work)
            seconds = prediction.seconds * (1 if work.gflop else self._count[key])
            total += seconds
            measured += seconds if prediction.measured else 0.0
        return total, measured


def schedule(remaining: Iterable[float], lengths: Iterable[float], slots: int, before: float = 0.0) -> float:
    """Seconds until the last piece of work ends, when each waiting one takes the first slot that becomes free.

    Args:
        remaining: what the pieces under way still need.
        lengths: durations of the waiting ones, in the order they will start.
        slots: how many can run at a time.
        before: seconds of other work that starts before all of ``lengths``, in pieces short enough to end together.
    """
    free = sorted(remaining)
    free = [0.0] * (max(slots, 1) - len(free)) + free
    if before:
        free = _filled(before, free)
    last = max(free)
    for length in lengths:
        end = free[0] + length
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def _filled(seconds: float, free: Sequence[float]) -> list[float]:
    """When slots become free after ``seconds`` of work are spread over them; before that, at the times ``free``."""
    level, total = 0.0, seconds
    for filled, begins in enumerate(free):
        if filled and begins >= level:
            return [level] * filled + list(free[filled:])
        total += begins
        level = total / (filled + 1)
    return [level] * len(free)


@dataclass(frozen=True)
class Eta:
    """Estimated time until a run is done.

    Attributes:
        seconds: wall clock, from now.
        measured: the share of the work whose predicted length rests on measurements, 0 to 1.
    """

    seconds: float
    measured: float


def eta(
    waiting: WaitingWork, running: Iterable[Running], predict: Predict, *, slots: int, overhead: float = 1.0
) -> Eta:
    """When all of the work is done.

    Args:
        waiting: what has not started.
        running: what is under way.
        predict: how long a piece of work should take.
        slots: how many pieces can run at a time.
        overhead: wall clock per second of work on a slot, 1 where no time is lost between pieces.
    """
    total, measured = waiting.seconds(predict)
    lengths = [predict(work).seconds for work in waiting.last(max(SCHEDULED, SCHEDULED_PER_SLOT * slots))]
    before = max(0.0, total - sum(lengths)) if len(waiting) > len(lengths) else 0.0
    remaining = []
    for one in running:
        prediction = predict(one.work)
        remaining.append(one.remaining(prediction.seconds))
        total += remaining[-1]
        measured += remaining[-1] if prediction.measured or one.share_done else 0.0
    return Eta(overhead * schedule(remaining, lengths, slots, before), measured / total if total else 1.0)
