"""How long open work will take, from how long finished work took. Pure arithmetic, no clock.

A piece of work (a :class:`Job`) has a kind and a size: the 10^9 operations in the backbone that the plan counts for it.
Within a kind, seconds grow with size, so a large dataset is not judged by a small one. A kind that was never measured
borrows from its nearest relative, and before anything was measured from the plan's assumption about the machine.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from orchestrator.core.cell import Cell

OVERDUE = 0.1
"""What has taken longer than expected is taken to need this share of its age on top."""

REMEMBERED = 20
"""About so many of the last jobs of a kind count."""

FOLLOWED, FOLLOWED_PER_PLACE = 256, 4
"""So many of the last waiting jobs are put on places one by one; those before them keep all places busy."""


class Kind(NamedTuple):
    """What a duration depends on most, next to size."""

    track: str
    backbone: str
    method: str
    shots: int


class Job(NamedTuple):
    """A piece of work: its kind, and its size in 10^9 operations, 0 where next to none are counted."""

    kind: Kind
    size: float


def kind_of(cell: Cell) -> Kind:
    """The kind of a cell."""
    return Kind(cell.track, cell.backbone.name, cell.method.name, cell.shots)


class Expected(NamedTuple):
    """How long a job should take, in seconds, and whether that rests on anything measured."""

    seconds: float
    measured: bool


@dataclass
class _Sum:
    """Of finished jobs; older ones fade, so that a machine that became slower, or another one, is noticed."""

    count: float = 0.0
    seconds: float = 0.0
    size: float = 0.0

    def add(self, seconds: float, size: float) -> None:
        """Count one more."""
        kept = min(1.0, (REMEMBERED - 1) / self.count) if self.count else 1.0
        self.count = kept * self.count + 1
        self.seconds = kept * self.seconds + seconds
        self.size = kept * self.size + size

    def expected(self, size: float) -> float:
        """The mean, in proportion to the size where there is one."""
        return self.seconds * size / self.size if size and self.size else self.seconds / self.count


@dataclass
class Durations:
    """Seconds per job, learned from finished ones.

    Args:
        gflops: 10^9 operations a second, assumed for what has no measured relative.
    """

    gflops: float = 20.0
    _sums: dict[tuple[object, ...], _Sum] = field(default_factory=lambda: defaultdict(_Sum))
    _shots: dict[tuple[object, ...], set[int]] = field(default_factory=lambda: defaultdict(set))
    _known: dict[Job, Expected] = field(default_factory=dict)

    def add(self, job: Job, seconds: float) -> None:
        """Count a finished job."""
        kind, sized = job.kind, job.size > 0
        keys = [(sized, *family) for family in _families(kind)]
        for key in (*keys, *((*key, kind.shots) for key in keys)):
            self._sums[key].add(seconds, job.size)
        for key in keys:
            self._shots[key].add(kind.shots)
        self._known.clear()

    def expected(self, job: Job) -> Expected:
        """From the nearest relatives that were measured; else the counted operations at the assumed speed.

        Nearest means: the same kind; then the same method at the nearest k, on this track and backbone, on this
        backbone, on any; then any method on this backbone, on any. Jobs that count operations and jobs that count
        none are no relatives.
        """
        if job not in self._known:
            self._known[job] = self._expected(job)
        return self._known[job]

    def _expected(self, job: Job) -> Expected:
        kind = job.kind
        for family in _families(kind):
            key = (job.size > 0, *family)
            if key in self._shots:
                nearest = min(self._shots[key], key=lambda shots: (_apart(shots, kind.shots), shots))
                return Expected(self._sums[(*key, nearest)].expected(job.size), True)
        return Expected(job.size / self.gflops, False)


def _families(kind: Kind) -> tuple[tuple[object, ...], ...]:
    """Whom a kind is related to, closest first; each name says which family it is, so that none are mixed."""
    track, backbone, method, _ = kind
    return (
        ("track", track, backbone, method),
        ("backbone, method", backbone, method),
        ("method", method),
        ("backbone", backbone),
        ("all",),
    )


def _apart(one: int, other: int) -> float:
    """How far two numbers of shots are apart, as a ratio."""
    return abs(math.log2(one + 1) - math.log2(other + 1))


def rest(expected: float, age: float) -> float:
    """Seconds that a job under way still needs: never none, since one that is overdue has not ended."""
    return max(expected - age, OVERDUE * age)


class Waiting:
    """Jobs that have not begun, in the order they will: what they take in all is known without going through them.

    Args:
        jobs: by name, in that order.
    """

    def __init__(self, jobs: Mapping[str, Job]) -> None:
        self._jobs = dict(jobs)
        self._count: dict[tuple[Kind, bool], int] = defaultdict(int)
        self._size: dict[tuple[Kind, bool], float] = defaultdict(float)
        for job in self._jobs.values():
            self._add(job, 1)

    def __len__(self) -> int:
        return len(self._jobs)

    def begin(self, name: str) -> None:
        """A job waits no longer; it is nothing new that some have begun before."""
        job = self._jobs.pop(name, None)
        if job is not None:
            self._add(job, -1)

    def _add(self, job: Job, count: int) -> None:
        key = (job.kind, job.size > 0)
        self._count[key] += count
        self._size[key] += count * job.size
        if not self._count[key]:
            del self._count[key], self._size[key]  # what rounding has left of the sum goes with the last job

    def last(self, count: int) -> list[Job]:
        """The last so many, in order."""
        return list(islice(reversed(self._jobs.values()), count))[::-1]

    def seconds(self, durations: Durations) -> tuple[float, float]:
        """What all of them take one after the other, and how much of that rests on anything measured."""
        total = measured = 0.0
        for (kind, sized), count in self._count.items():
            # In proportion to the size where there is one: the sum of sizes takes the sum of times.
            expected = durations.expected(Job(kind, self._size[kind, sized] if sized else 0.0))
            seconds = expected.seconds * (1 if sized else count)
            total += seconds
            measured += seconds if expected.measured else 0.0
        return total, measured


def schedule(rests: Iterable[float], lengths: Iterable[float], places: int, before: float = 0.0) -> float:
    """Seconds until the last job ends, when each of the waiting ones takes the first place that becomes free.

    Args:
        rests: what the jobs under way still need.
        lengths: the waiting ones, in the order they will be started.
        places: how many can be under way at a time.
        before: seconds of other work that is started before all of ``lengths``, in jobs short enough to end together.
    """
    free = sorted(rests)
    free = [0.0] * (max(places, 1) - len(free)) + free
    if before:
        free = _poured(before, free)
    last = max(free)
    for length in lengths:
        end = free[0] + length
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def _poured(seconds: float, free: Sequence[float]) -> list[float]:
    """When places are free that were free at such times, in order, after sharing out so much work among them."""
    level, total = 0.0, seconds
    for filled, begins in enumerate(free):
        if filled and begins >= level:
            return [level] * filled + list(free[filled:])
        total += begins
        level = total / (filled + 1)
    return [level] * len(free)


@dataclass(frozen=True)
class Eta:
    """How long it will take.

    Attributes:
        seconds: wall clock, from now.
        measured: the share of that work whose expected length rests on measured work, 0 to 1.
    """

    seconds: float
    measured: float


def eta(
    waiting: Waiting,
    running: Iterable[tuple[Job, float, float | None]],
    durations: Durations,
    *,
    places: int,
    drag: float = 1.0,
) -> Eta:
    """When all of it is done.

    Args:
        waiting: what has not begun.
        running: what has, with its age in seconds and, where it tells, the share of it that is done.
        durations: what was measured.
        places: how many can be under way at a time.
        drag: wall clock per second of work at a place, 1 where no time is lost between jobs.
    """
    total, known = waiting.seconds(durations)
    lengths = [durations.expected(job).seconds for job in waiting.last(max(FOLLOWED, FOLLOWED_PER_PLACE * places))]
    before = max(0.0, total - sum(lengths)) if len(waiting) > len(lengths) else 0.0
    rests = []
    for job, age, done in running:
        expected = durations.expected(job)
        told = age * (1 - done) / done if done else None
        rests.append(rest(expected.seconds, age) if told is None else told)
        total += rests[-1]
        known += rests[-1] if expected.measured or told is not None else 0.0
    return Eta(drag * schedule(rests, lengths, places, before), known / total if total else 1.0)
