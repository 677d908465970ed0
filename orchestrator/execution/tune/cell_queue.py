"""The queue that Tune takes cells from. It chooses the next cell by the free workers and the size of the cluster."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import cache
from typing import Any

from ray.tune.search import Searcher

from orchestrator.core.events import Resources

WINDOW = 256
"""Number of waiting cells among which the queue looks for one with the same request as the cell that has just ended."""

REFRESH_SECONDS = 2.0
"""Seconds between two queries of the cluster's size."""

_ROUNDING = 1e-6


_Cell = tuple[int, Resources]
"""The number of a cell, and the CPUs and GPUs that it requests."""


class CellQueue(Searcher):  # type: ignore[misc]
    """The cells that wait and those that run. Tune asks the queue for the configuration of the next trial.

    A request is the CPUs and the share of a GPU that a cell asks for. Which cell is next:

    - A worker can be reused only for a cell with the same request, and starting a worker takes seconds. So when a cell
      ends, a cell with the same request follows, if there is one among the next :data:`WINDOW`.
    - Otherwise, each request's share of the cluster is compared with its share of the waiting work. The next cell has
      the request that lags behind the most. So cells with different requests run side by side from the first cell to
      about the last. No cell waits until all cells with another request have ended.
    - Near the end, the longest waiting cell comes first if it takes longer than the others would take together on the
      slots in use. So the run does not end with a long cell on one worker while all other workers are idle.
    - A cell's request is computed when the cell is given out, so that it follows from all measurements so far.
    - Capacity is counted over the whole cluster, so the free capacity may be spread over several GPUs. A cell that is
      given out may then wait a moment until smaller cells leave one GPU.

    Args:
        numbers: the cells in their order, each as its number.
        request_of: returns the current request of a cell, by its number.
        capacity: returns the CPUs and GPUs that the cluster has, or can grow to. It is called again every
            :data:`REFRESH_SECONDS`, so that nodes that join are used.
        work_of: returns the number of operations of a cell. A cell with more operations is assumed to take longer.

    Attributes:
        more_to_come: whether :meth:`add` may still be called, so that the queue is not finished when it is empty.
    """

    def __init__(
        self,
        numbers: Iterable[int],
        request_of: Callable[[int], Resources],
        capacity: Callable[[], Resources],
        work_of: Callable[[int], float] = lambda number: 0.0,
    ) -> None:
        super().__init__()
        self._request_of, self._capacity, self._work_of = request_of, capacity, cache(work_of)
        self._rest = deque(numbers)
        self._window: dict[int, None] = {}
        self._added = 0
        self.more_to_come = False
        self._retry_first, self._retry_last = deque[_Cell](), deque[_Cell]()
        self._running: dict[str, Resources] = {}
        self._freed: list[Resources] = []
        self._size = Resources(0, 0)
        self._refreshed = float("-inf")
        # value of ``_added`` when the last search found no waiting cell that fits; ``None`` if one may fit now
        self._full_at: int | None = None
        self._stopped = False

    @property
    def finished(self) -> bool:
        """Whether no cell runs and none will be given out."""
        waiting = self._retry_first or self._retry_last or self._window or self._rest
        return not self._running and (self._stopped or not (waiting or self.more_to_come))

    def add(self, numbers: Iterable[int]) -> None:
        """Let more cells run, after those that wait. Any thread may call this."""
        self._rest.extend(numbers)
        self._added += 1

    def stop(self) -> None:
        """Give out no more cells."""
        self._stopped = True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next cell for a trial: a dict of ``cell`` (its number), ``cpus`` and ``gpus``.

        Return ``None`` while no waiting cell fits, and :data:`Searcher.FINISHED` when the queue is :attr:`finished`.
        """
        if self.finished:
            return str(Searcher.FINISHED)
        if self._stopped:
            return None
        added = self._added
        self._refresh()
        if self._full_at == added:
            return None
        if (chosen := self._choose()) is None:
            self._full_at = added
            return None
        number, self._running[trial_id] = chosen
        return {"cell": number, **asdict(chosen[1])}

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Free the capacity of a trial's cell, which has finished or failed. Tune passes keyword arguments."""
        if (request := self._running.pop(trial_id, None)) is not None:
            self._freed.append(request)
            self._full_at = None

    def save(self, checkpoint_path: str) -> None:
        """Write nothing: Tune's snapshots are never restored."""

    restore = save

    def requeue(self, number: int, request: Resources, *, first: bool) -> None:
        """Queue an ended cell again with a new ``request``: before the waiting cells if ``first``, else after them.

        A cell that requests more than its neighbours should come last. If it came first, capacity would have to stay
        free for it while smaller cells wait.
        """
        (self._retry_first if first else self._retry_last).append((number, request))
        self._full_at = None

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed > REFRESH_SECONDS:
            if (size := self._capacity()) != self._size:
                self._full_at = None
            self._size, self._refreshed = size, time.monotonic()
        while self._rest and len(self._window) < WINDOW:
            self._window[self._rest.popleft()] = None

    def _choose(self) -> _Cell | None:
        while self._freed:
            freed = self._freed.pop()
            if self._fits(freed) and (chosen := self._take_with(freed)) is not None:
                return chosen
        if (chosen := _remove_first(self._retry_first, self._fits)) is not None:
            return chosen
        waiting = Counter(map(self._request_of, self._window))
        running = Counter(self._running.values())
        work = sum(count * self._share(request) for request, count in waiting.items())

        def deficit(request: Resources) -> float:
            """Return the request's share of the waiting work minus its share of the cluster."""
            share = self._share(request)
            return waiting[request] * share / work - running[request] * share

        if fitting := [request for request in waiting if self._fits(request)]:
            return self._take_with(max(fitting, key=deficit))  # of requests with equal deficits, the first
        return _remove_first(self._retry_last, self._fits)

    def _take_with(self, request: Resources) -> _Cell | None:
        """Remove and return the next waiting cell with exactly this request; ``None`` if there is none.

        Near the end, it may be the longest cell with this request instead of the next one.
        """
        if (chosen := _remove_first(self._retry_first, request.__eq__)) is not None:
            return chosen
        waiting = (number for number in self._window if self._request_of(number) == request)
        if (number := next(waiting, None)) is None:
            return _remove_first(self._retry_last, request.__eq__)
        if len(self._window) < WINDOW:  # the window holds all cells that still wait for a first try
            longest = max((number, *waiting), key=self._work_of)
            if self._work_of(longest) * (len(self._running) + 1) >= sum(map(self._work_of, self._window)):
                number = longest
        del self._window[number]
        return number, request

    def _share(self, request: Resources) -> float:
        """Return the share of the cluster's CPUs or of its GPUs that a request takes, whichever is larger."""
        return max(request.cpus / max(self._size.cpus, 1.0), request.gpus / max(self._size.gpus, 1.0))

    def _fits(self, request: Resources) -> bool:
        if not self._running:
            return True  # if no cell runs, any cell is given out: Ray waits for a node that can run it
        cpus = self._size.cpus - sum(running.cpus for running in self._running.values()) + _ROUNDING
        gpus = self._size.gpus - sum(running.gpus for running in self._running.values()) + _ROUNDING
        return (not request.cpus or request.cpus <= cpus) and (not request.gpus or request.gpus <= gpus)


def _remove_first(cells: deque[_Cell], accepts: Callable[[Resources], bool]) -> _Cell | None:
    if (found := next((cell for cell in cells if accepts(cell[1])), None)) is not None:
        cells.remove(found)
    return found
