"""Run graphs of tasks as Ray tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from orchestrator.core.events import TaskEvent
from orchestrator.execution.health import HEALTH_CHECK_SECONDS, check_alive
from orchestrator.execution.process import worker_log
from orchestrator.execution.task_graph import Frontier, GraphTask, call_task
from orchestrator.util.errors import one_line

TASK_RETRIES = 3
"""How often a task whose worker died is started again. A task that raises is not retried."""


def run_graph(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
    """Run a graph as Ray tasks, yielding events as they happen; as many at a time as there are CPUs, at least 4.

    A task that raises fails, and the tasks that depend on it are skipped; the others continue. A task whose worker
    dies is started again. When the iterator is left early (on Ctrl-C, for example), running tasks end with the
    connection: cancelling a task by force can bring Ray down when it ends at that moment.

    Raises ``ValueError`` for a graph that cannot run, :class:`~orchestrator.execution.health.ClusterLost` when the
    cluster is lost.
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
            running[options.remote(key, task.function, task.args)] = key
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
            event = TaskEvent(key, "failed", error=lost, traceback=str(error), again=True)
        yield from frontier.end(event)


def _call_in_worker(key: str, function: Callable[..., Any], args: tuple[Any, ...]) -> TaskEvent:
    return call_task(key, function, args, worker_log())
