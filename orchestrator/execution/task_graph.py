"""Graphs of tasks that depend on one another, and how they are run in this process and on Ray.

Tasks do not pass values to one another: a task writes its output to the store, and the tasks that depend on it read it
there.
"""

import heapq
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Any, Literal

from orchestrator.core.events import TaskEvent
from orchestrator.execution.health import HEALTH_CHECK_SECONDS, check_alive
from orchestrator.execution.process import worker_log
from orchestrator.store import CorruptArtifact
from orchestrator.store.errors import is_store_error, store_error
from orchestrator.util.errors import one_line

TASK_RETRIES = 3
"""How often a task is started again if its Ray worker dies. A task that raises is not retried."""


@dataclass(frozen=True)
class GraphTask:
    """One task of a graph.

    Attributes:
        function, args: a module-level function and its positional arguments; both must pickle.
        dependencies: keys of the tasks that must finish first; they are in the graph.
        cpus, gpus: the CPUs and GPUs that the task occupies on a cluster.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    dependencies: frozenset[str] = frozenset()
    cpus: float = 1.0
    gpus: float = 0.0


def call_task(key: str, task: GraphTask, log: str = "") -> TaskEvent:
    """Call a task's function, and return the event that ends the task.

    The event holds an exception of the function as text, because not every exception can be pickled.
    ``KeyboardInterrupt`` and ``SystemExit`` are not caught.
    """
    started = time.perf_counter()

    def ended(kind: Literal["finished", "failed"], **more: Any) -> TaskEvent:
        return TaskEvent(key, kind, seconds=time.perf_counter() - started, log=log, **more)

    try:
        task.function(*task.args)
    except Exception as error:
        trace = traceback.format_exc()
        if is_store_error(error):
            return ended("failed", error=store_error(error), problem="store", traceback=trace)
        return ended("failed", error=one_line(error), traceback=trace, retryable=isinstance(error, CorruptArtifact))
    return ended("finished")


def run_graph_locally(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph in this process, one task at a time, in the graph's order as far as dependencies allow.

    If a task fails, the tasks that do not depend on it still run. Raises ``ValueError`` for a graph with a cycle.
    """
    ends: deque[TaskEvent] = deque()
    return _run_graph(tasks, 1, lambda key, task: ends.append(call_task(key, task)), ends.popleft)


def run_graph_on_ray(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph as Ray tasks, and yield events as they happen.

    The number of tasks that are submitted at a time is the cluster's number of CPUs, but at least 4. If a task raises,
    it has failed, and the tasks that depend on it are skipped; all other tasks continue. A task whose worker dies is
    started again.

    If the iterator is left early, for example on Ctrl-C, running tasks are not cancelled: they end with the connection.
    A forced cancellation can crash Ray if the task ends at that moment.

    Raises ``ValueError`` for a graph with a cycle, and :class:`~orchestrator.execution.health.ClusterLost` when the
    cluster is lost.
    """
    import ray
    from ray.exceptions import RayError

    remote = ray.remote(_call_in_worker)
    running: dict[Any, str] = {}

    def start(key: str, task: GraphTask) -> None:
        options = remote.options(
            num_cpus=task.cpus, num_gpus=task.gpus, max_retries=TASK_RETRIES, retry_exceptions=False, name=key
        )
        running[options.remote(key, task)] = key

    def next_end() -> TaskEvent:
        while not (done := ray.wait(list(running), num_returns=1, timeout=HEALTH_CHECK_SECONDS)[0]):
            check_alive()
        key = running.pop(done[0])
        try:
            event: TaskEvent = ray.get(done[0])
            return event
        except RayError as error:
            lost = f"its worker was lost: {one_line(error)}"
            return TaskEvent(key, "failed", error=lost, traceback=str(error), retryable=True)

    return _run_graph(tasks, max(4, int(ray.cluster_resources().get("CPU", 0))), start, next_end)


def _run_graph(
    tasks: Mapping[str, GraphTask],
    limit: int,
    start: Callable[[str, GraphTask], None],
    next_end: Callable[[], TaskEvent],
) -> Iterator[TaskEvent]:
    """Start the tasks that can run, in the graph's order and at most ``limit`` at a time, until all have ended.

    ``next_end`` waits until a started task ends, and returns its event. A task is skipped if a task that it depends on
    has failed or was skipped.
    """
    rank = {key: number for number, key in enumerate(tasks)}
    sorter = TopologicalSorter({key: task.dependencies for key, task in tasks.items()})
    sorter.prepare()
    ready: list[tuple[int, str]] = []
    causes: dict[str, str] = {}  # failed or skipped task -> the task whose failure caused it
    running = 0
    while sorter.is_active():
        for key in sorter.get_ready():
            if not (failed := tasks[key].dependencies & causes.keys()):
                heapq.heappush(ready, (rank[key], key))
                continue
            causes[key] = cause = causes[min(failed, key=rank.__getitem__)]
            sorter.done(key)
            yield TaskEvent(key, "skipped", error=f"needs {cause}, which failed", failed_dependency=cause)
        while ready and running < limit:
            _, key = heapq.heappop(ready)
            running += 1
            yield TaskEvent(key, "started")
            start(key, tasks[key])
        if running:
            event = next_end()
            running -= 1
            if event.kind == "failed":
                causes[event.key] = event.key
            sorter.done(event.key)
            yield event


def _call_in_worker(key: str, task: GraphTask) -> TaskEvent:
    return call_task(key, task, worker_log())
