"""Graphs of tasks that depend on one another, and how they are run in this process and on Ray.

Tasks do not pass values to one another: a task writes its output to the store, and the tasks that depend on it read it
there.
"""

from __future__ import annotations

import heapq
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any

from orchestrator.core.events import TaskEvent
from orchestrator.execution.health import HEALTH_CHECK_SECONDS, check_alive
from orchestrator.execution.process import worker_log
from orchestrator.store import CorruptArtifact
from orchestrator.store.errors import is_store_error, store_error
from orchestrator.util.errors import one_line

TASK_RETRIES = 3
"""How often a task on Ray whose worker died is started again. A task that raises is not retried."""


@dataclass(frozen=True)
class GraphTask:
    """One task of a graph.

    Attributes:
        function, args: a module-level function and its positional arguments; both must pickle.
        dependencies: keys of the tasks that must finish first; they are in the graph.
        cpus, gpus: what it occupies on a cluster.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    dependencies: frozenset[str] = frozenset()
    cpus: float = 1.0
    gpus: float = 0.0


class Frontier:
    """The state of a graph that runs: which tasks can start, and which are skipped because another one failed.

    Raises ``ValueError`` for a graph that has a cycle.
    """

    def __init__(self, tasks: Mapping[str, GraphTask]) -> None:
        self._tasks, self._rank = tasks, {key: rank for rank, key in enumerate(tasks)}
        self._sorter = TopologicalSorter({key: task.dependencies for key, task in tasks.items()})
        self._sorter.prepare()
        self._ready = [(self._rank[key], key) for key in self._sorter.get_ready()]
        heapq.heapify(self._ready)
        self._causes: dict[str, str] = {}  # of failed and skipped tasks: the task whose failure caused it

    def take(self) -> str | None:
        """Return the next task that can run, in the graph's order; ``None`` while all others wait for running ones."""
        return heapq.heappop(self._ready)[1] if self._ready else None

    def end(self, event: TaskEvent) -> Iterator[TaskEvent]:
        """Record the event that ended a task; yields that event and one for every task that is skipped for it."""
        yield event
        if event.kind == "failed":
            self._causes[event.key] = event.key
        self._sorter.done(event.key)
        while new := self._sorter.get_ready():
            for key in new:
                failed = self._tasks[key].dependencies & self._causes.keys()
                if not failed:
                    heapq.heappush(self._ready, (self._rank[key], key))
                    continue
                self._causes[key] = cause = self._causes[min(failed, key=self._rank.__getitem__)]
                yield TaskEvent(key, "skipped", error=f"needs {cause}, which failed", failed_dependency=cause)
                self._sorter.done(key)


def call_task(key: str, task: GraphTask, log: str = "") -> TaskEvent:
    """Call a task's function; returns the event that ends the task, which pickles whatever the function raised.

    ``KeyboardInterrupt`` and ``SystemExit`` are raised on.
    """
    started = time.perf_counter()
    try:
        task.function(*task.args)
    except Exception as error:
        store_failed = is_store_error(error)
        return TaskEvent(
            key,
            "failed",
            error=store_error(error) if store_failed else one_line(error),
            traceback=traceback.format_exc(),
            seconds=time.perf_counter() - started,
            log=log,
            retryable=isinstance(error, CorruptArtifact),
            store_failed=store_failed,
        )
    return TaskEvent(key, "finished", seconds=time.perf_counter() - started, log=log)


def run_graph_locally(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph in this process, one task at a time, in the graph's order as far as dependencies allow.

    A task that fails does not stop those that do not depend on it. Raises ``ValueError`` as :class:`Frontier`.
    """
    frontier = Frontier(tasks)
    while (key := frontier.take()) is not None:
        yield TaskEvent(key, "started")
        yield from frontier.end(call_task(key, tasks[key]))


def run_graph_on_ray(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph as Ray tasks, yielding events as they happen; as many at a time as there are CPUs, at least 4.

    A task that raises fails, and the tasks that depend on it are skipped; the others continue. A task whose worker
    dies is started again. When the iterator is left early (on Ctrl-C, for example), running tasks end with the
    connection: cancelling a task by force can bring Ray down when it ends at that moment.

    Raises ``ValueError`` as :class:`Frontier`, and :class:`~orchestrator.execution.health.ClusterLost` when the cluster
    is lost.
    """
    import ray
    from ray.exceptions import RayError

    frontier = Frontier(tasks)
    limit = max(4, int(ray.cluster_resources().get("CPU", 0)))
    remote = ray.remote(_call_in_worker)
    running: dict[Any, str] = {}
    while True:
        while len(running) < limit and (key := frontier.take()) is not None:
            task = tasks[key]
            options = remote.options(
                num_cpus=task.cpus, num_gpus=task.gpus, max_retries=TASK_RETRIES, retry_exceptions=False, name=key
            )
            running[options.remote(key, task)] = key
            yield TaskEvent(key, "started")
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1, timeout=HEALTH_CHECK_SECONDS)
        if not done:
            check_alive()
            continue
        key = running.pop(done[0])
        try:
            event = ray.get(done[0])
        except RayError as error:
            lost = f"its worker was lost: {one_line(error)}"
            event = TaskEvent(key, "failed", error=lost, traceback=str(error), retryable=True)
        yield from frontier.end(event)


def _call_in_worker(key: str, task: GraphTask) -> TaskEvent:
    return call_task(key, task, worker_log())
