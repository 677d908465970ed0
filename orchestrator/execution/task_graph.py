"""Tasks that need one another: who may run now, and a runner for one process.

:func:`orchestrator.execution.cluster.run_graph` runs the same graphs on Ray. Values do not flow between tasks: a task
leaves what it made in the store, and those that need it read it there.
"""

from __future__ import annotations

import heapq
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any

from orchestrator.core.events import TaskEvent
from orchestrator.util.errors import one_line


@dataclass(frozen=True)
class GraphTask:
    """One piece of work.

    Attributes:
        function: a module-level function; it and ``args`` must pickle.
        args: its positional arguments.
        needs: keys of the tasks that must have finished before.
        cpus, gpus: what it occupies on a cluster.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    needs: frozenset[str] = frozenset()
    cpus: float = 1.0
    gpus: float = 0.0


class Frontier:
    """The bookkeeping of a graph: hands out ready tasks in the mapping's order, and skips what a failure dooms.

    Raises ``ValueError`` for a need that is no task of the graph, or for a cycle.
    """

    def __init__(self, tasks: Mapping[str, GraphTask]) -> None:
        for key, task in tasks.items():
            if missing := sorted(task.needs - tasks.keys()):
                raise ValueError(f"task {key!r} needs {missing[0]!r}, which is not in the graph")
        self._rank = {key: rank for rank, key in enumerate(tasks)}
        self._dependants: dict[str, list[str]] = {key: [] for key in tasks}
        for key, task in tasks.items():
            for need in task.needs:
                self._dependants[need].append(key)
        self._sorter = TopologicalSorter({key: task.needs for key, task in tasks.items()})
        self._sorter.prepare()
        self._ready: list[tuple[int, str]] = []
        self._doomed: set[str] = set()
        self._refill()

    def _refill(self) -> None:
        for key in self._sorter.get_ready():
            heapq.heappush(self._ready, (self._rank[key], key))

    def take(self) -> str | None:
        """The first task that can run now, ``None`` while all the rest wait for others."""
        return heapq.heappop(self._ready)[1] if self._ready else None

    def finish(self, key: str) -> None:
        """``key`` is done: what waited only for it becomes ready."""
        self._sorter.done(key)
        self._refill()

    def fail(self, key: str) -> list[str]:
        """``key`` failed: everything that needs it, directly or not, and was not skipped before, in order."""
        doomed: set[str] = set()
        stack = [key]
        while stack:
            for dependant in self._dependants[stack.pop()]:
                if dependant not in self._doomed:
                    self._doomed.add(dependant)
                    doomed.add(dependant)
                    stack.append(dependant)
        return sorted(doomed, key=self._rank.__getitem__)


@dataclass(frozen=True)
class Called:
    """The outcome of calling a task's function; picklable whatever the function raised."""

    value: Any = None
    error: str = ""
    traceback: str = ""
    seconds: float = 0.0
    log: str = field(default="")
    again: bool = False

    def event(self, key: str) -> TaskEvent:
        """As the event that ends the task."""
        if self.error:
            return TaskEvent(
                key,
                "failed",
                error=self.error,
                traceback=self.traceback,
                seconds=self.seconds,
                log=self.log,
                again=self.again,
            )
        return TaskEvent(key, "finished", value=self.value, seconds=self.seconds, log=self.log)


def call(function: Callable[..., Any], args: tuple[Any, ...], log: str = "") -> Called:
    """Call a task's function, turning what it raises into data. ``KeyboardInterrupt`` and ``SystemExit`` pass."""
    begun = time.perf_counter()
    try:
        value = function(*args)
    except Exception as error:
        return Called(None, one_line(error), traceback.format_exc(), time.perf_counter() - begun, log)
    return Called(value, seconds=time.perf_counter() - begun, log=log)


def skipped(frontier: Frontier, key: str) -> Iterator[TaskEvent]:
    """The events of everything that the failure of ``key`` dooms."""
    for dependant in frontier.fail(key):
        yield TaskEvent(dependant, "skipped", error=f"needs {key}, which failed", failed_dependency=key)


def run_graph_locally(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph in this process, one task after the other, in the mapping's order as far as needs allow.

    A failing task does not stop those that do not need it. Raises ``ValueError`` for a graph that cannot run.
    """
    frontier = Frontier(tasks)
    while (key := frontier.take()) is not None:
        yield TaskEvent(key, "started")
        outcome = call(tasks[key].function, tasks[key].args)
        yield outcome.event(key)
        if outcome.error:
            yield from skipped(frontier, key)
        else:
            frontier.finish(key)
