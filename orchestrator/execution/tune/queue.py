"""Which cell is dealt next: one that a free worker can take over, or that the cluster has room for."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.events import Resources

AHEAD = 256
"""So many open cells are looked through for one that asks for the same as the cell that has just ended."""

LOOK_SECONDS = 2.0
"""How old what is known of the cluster's size may be."""

_ROUNDING = 1e-6


@dataclass(frozen=True)
class Hand:
    """A cell that is dealt: its number, and what it asks for."""

    number: int
    request: Resources


class Deck:
    """The cells still to run, and those that run.

    A worker is kept only for a cell that asks for the same, and starting one costs seconds. So a place that becomes
    free goes to the next cell of the same request where there is one among the next :data:`AHEAD`. Other room goes to
    the request that has the least of the cluster, against its part of the work ahead: each kind then has its places
    from the first cell to about the last, and the cluster is never emptied of one kind to be filled with another.
    What a cell asks for is worked out when it is dealt, not before, from what has been measured by then. Room is
    counted over the whole cluster: a cell may be dealt that waits a moment for one GPU to be free of smaller ones.

    Args:
        count: cells are numbered from 0.
        request_of: what a cell asks for now.
        capacity: the CPUs and GPUs of the cluster, or of what it may become; asked again every few seconds, so that
            nodes that join are used.
        slots: deal at most so many at a time, whatever fits; ``None`` for no such limit.
    """

    def __init__(
        self,
        count: int,
        request_of: Callable[[int], Resources],
        capacity: Callable[[], tuple[float, float]],
        slots: int | None = None,
    ) -> None:
        self._count, self._request_of, self._capacity, self._slots = count, request_of, capacity, slots
        self._ahead: OrderedDict[int, None] = OrderedDict()
        self._next = 0
        self._soon: deque[Hand] = deque()
        self._last: deque[Hand] = deque()
        self._dealt: dict[str, Hand] = {}
        self._freed: list[Resources] = []
        self._places: Counter[Resources] = Counter()
        self._used = [0.0, 0.0]
        self._room = (0.0, 0.0)
        self._looked = float("-inf")
        self._full = False
        self._stopped = False

    @property
    def over(self) -> bool:
        """Whether every cell that was to be dealt has ended."""
        left = self._soon or self._last or self._ahead or self._next < self._count
        return not self._dealt and (self._stopped or not left)

    def stop(self) -> None:
        """Deal no more."""
        self._stopped = True

    def take(self, name: str) -> Hand | None:
        """Deal the next cell, under a name by which :meth:`ended` will know it; ``None`` while there is no room."""
        if self._stopped or (self._slots is not None and len(self._dealt) >= self._slots):
            return None
        self._look()
        if self._full:
            return None
        hand = self._choose()
        self._full = hand is None
        if hand is not None:
            self._dealt[name] = hand
            self._count_use(hand.request, 1)
        return hand

    def ended(self, name: str) -> None:
        """A cell that was dealt has ended, one way or another."""
        hand = self._dealt.pop(name, None)
        if hand is not None:
            self._count_use(hand.request, -1)
            self._freed.append(hand.request)
            self._full = False

    def hand_back(self, number: int, request: Resources, *, soon: bool) -> None:
        """Have a cell run again that has ended, with what it asks for this time: as soon as possible, or last.

        What asks for more than its neighbours is better left for last: nothing has to be kept free for it then.
        """
        (self._soon if soon else self._last).append(Hand(number, request))
        self._full = False

    def _look(self) -> None:
        if time.monotonic() - self._looked > LOOK_SECONDS:
            room = self._capacity()
            self._full &= room == self._room
            self._room, self._looked = room, time.monotonic()
        while len(self._ahead) < AHEAD and self._next < self._count:
            self._ahead[self._next] = None
            self._next += 1

    def _choose(self) -> Hand | None:
        while self._freed:
            freed = self._freed.pop()
            if self._fits(freed) and (hand := self._draw(freed)) is not None:
                return hand
        if (hand := _remove_first(self._soon, self._fits)) is not None:
            return hand
        ahead = Counter(map(self._request_of, self._ahead))
        work = sum(count * self._part(request) for request, count in ahead.items())

        def lacks(request: Resources) -> float:
            return ahead[request] * self._part(request) / work - self._places[request] * self._part(request)

        fitting = [request for request in ahead if self._fits(request)]
        if fitting:
            return self._draw(max(fitting, key=lacks))  # of equals the first in order
        return _remove_first(self._last, self._fits)

    def _draw(self, wanted: Resources) -> Hand | None:
        """Take out the first cell that asks for exactly that."""
        if (hand := _remove_first(self._soon, wanted.__eq__)) is not None:
            return hand
        for number in self._ahead:
            if self._request_of(number) == wanted:
                del self._ahead[number]
                return Hand(number, wanted)
        return _remove_first(self._last, wanted.__eq__)

    def _part(self, request: Resources) -> float:
        """The part of the cluster that a request takes, of what it takes most of."""
        cpus, gpus = self._room
        return max(request.cpus / max(cpus, 1.0), request.gpus / max(gpus, 1.0))

    def _fits(self, request: Resources) -> bool:
        if not self._dealt:
            return True  # what can never fit is Ray's to wait for
        wanted = (request.cpus, request.gpus)
        return all(
            used + more <= room + _ROUNDING
            for used, more, room in zip(self._used, wanted, self._room, strict=True)
            if more
        )

    def _count_use(self, request: Resources, sign: int) -> None:
        self._places[request] += sign
        self._used[0] += sign * request.cpus
        self._used[1] += sign * request.gpus


def _remove_first(hands: deque[Hand], wanted: Callable[[Resources], bool]) -> Hand | None:
    for hand in hands:
        if wanted(hand.request):
            hands.remove(hand)
            return hand
    return None
