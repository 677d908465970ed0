"""Start or join Ray, say what it has, and run graphs of tasks on it."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from orchestrator.core.events import TaskEvent
from orchestrator.execution.autoscaler import Growth
from orchestrator.execution.connect import (
    DRIVER_VARIABLE,
    ENVIRONMENT,
    HEAD,
    interrupt_later,
    join,
    locate,
    log_folder,
    shake_hands,
    start,
    use_token,
)
from orchestrator.execution.task_graph import Called, Frontier, GraphTask, call, skipped
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.scratch import ScratchFolder

SHUTDOWN_SECONDS = 20.0
"""How long the end of a connection may take before it is left behind."""

HEALTH_SECONDS = 2.0
"""While nothing happens, the cluster is asked this often whether it is still there."""

ANSWER_SECONDS = 20.0
"""A control service that does not answer for so long counts as lost; Ray would kill this process after 60."""

TASK_RETRIES = 3
"""How often a task whose worker died is started again. What a task raises is never retried."""

_VITAL = frozenset({"gcs_server", "raylet"})
"""Processes of a local instance without which nothing goes on."""


class ClusterLost(UserError):
    """The cluster went away while cells or tasks were under way. What has finished is kept."""


@dataclass(frozen=True)
class ClusterInfo:
    """What a cluster has.

    Attributes:
        address: ``local``, or where it was joined.
        nodes: how many machines are alive.
        cpus, gpus: logical ones in all.
        memory: bytes in all.
        largest: (cpus, gpus) of the largest single node there is or may be; nothing that needs more can ever run.
        may_become: (cpus, gpus) in all when every machine has come that its autoscaler may start; what there is, where
            it has none.
        logs: folder with the output of workers on this machine.
    """

    address: str
    nodes: int
    cpus: float
    gpus: float
    memory: int
    largest: tuple[float, float]
    logs: str
    may_become: tuple[float, float]


class Cluster:
    """A connection to Ray; a context manager that ends it.

    Attributes:
        address: ``local``, or where it was joined.
        logs: folder with the output of workers on this machine.
    """

    def __init__(self, address: str, logs: Path, scratch: ScratchFolder | None, *, owned: bool) -> None:
        self.address, self.logs = address, logs
        self._scratch, self._owned, self._growth = scratch, owned, Growth()

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        worker_env: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Start a local instance of its own (``None``), or join one (``"auto"``, ``"host:port"``).

        A local instance listens on the loopback interface only, has no dashboard, writes its workers' output to
        files and is gone when this process is gone. With ``None``, an instance this process is already connected to
        is used as it is and left running.

        Args:
            address: which instance.
            cpus, gpus: how many a local instance may use; those of the machine by default.
            worker_env: environment variables for every worker.

        Raises :class:`UserError` when there is nothing to join, or it does not answer.
        """
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if address is not None:
            use_token()
            address = locate(address)
        import ray
        from ray._private import auto_init_hook, worker

        auto_init_hook.enable_auto_connect = False  # a thread that outlives its cluster must not start another
        worker._worker_logs_enabled = False  # or Ray prints a paragraph to the terminal for every dead worker
        if ray.is_initialized():
            if address is not None:
                raise RuntimeError(f"cannot join {address}: this process is connected to a Ray instance already")
            return cls("already connected", log_folder(), None, owned=False)
        if address is None:
            scratch = start(cpus, gpus, worker_env or {})
            return cls("local", log_folder(), scratch, owned=True)
        join(address, worker_env or {})
        cluster = cls(address, log_folder(), None, owned=True)
        try:
            cluster._growth = shake_hands(address)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def describe(self) -> ClusterInfo:
        """What it has now, and what it may become."""
        import ray

        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        growth = self._growth

        def in_all(name: str) -> float:
            return float(sum(node.get(name, 0.0) for node in alive))

        def largest(name: str, coming: float) -> float:
            return float(max([coming, *(node.get(name, 0.0) for node in alive)]))

        def may_become(name: str, coming: float) -> float:
            head = float(sum(node.get(name, 0.0) for node in alive if HEAD in node))
            return max(in_all(name), head + coming)

        return ClusterInfo(
            address=self.address,
            nodes=len(alive),
            cpus=in_all("CPU"),
            gpus=in_all("GPU"),
            memory=int(in_all("memory")),
            largest=(largest("CPU", growth.largest[0]), largest("GPU", growth.largest[1])),
            logs=str(self.logs),
            may_become=(may_become("CPU", growth.cpus), may_become("GPU", growth.gpus)),
        )

    def close(self) -> None:
        """End the connection, and the instance if it is this process's own. Closing twice is harmless."""
        if not self._owned:
            return
        self._owned = False
        import ray

        ending = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
        with interrupt_later(), _nothing_collected(until_ended=ending):
            ending.start()
            ending.join(SHUTDOWN_SECONDS)
            if ending.is_alive():
                _abandon()
        if self._scratch is not None:
            self._scratch.remove()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextlib.contextmanager
def _nothing_collected(until_ended: threading.Thread) -> Iterator[None]:
    """Keep Python's garbage collector from running, in any thread, while Ray ends; for good if the thread does not end.

    For a moment Ray's native part is gone and Python's does not know yet. An object reference that is collected then,
    of the cycles that Tune leaves behind, ends this process at once, with exit code 1 and at most a line in red.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled and not until_ended.is_alive():
            gc.enable()


def _abandon() -> None:
    """Leave a connection that does not end, as can happen when its ``raylet`` was killed: end our own processes."""
    from ray._private import worker

    atexit.unregister(worker.shutdown)  # or it would wait again when the interpreter ends
    if worker._global_node is not None:
        with contextlib.suppress(Exception):
            worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)


def check_alive() -> None:
    """Raise :class:`ClusterLost` when the node this driver hangs on is gone, or nobody can say.

    Ray itself can wait for ever for results of a node whose ``raylet`` was killed, and ends the process without a
    word to Python when its control service has been gone for a minute.
    """
    from ray._private import worker

    node = worker._global_node
    if node is not None and (dead := [name for name, _ in node.dead_processes() if name in _VITAL]):
        raise _lost(f"its {dead[0]} has ended")
    answers: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_ask_whether_alive, args=(answers,), daemon=True).start()
    try:
        why = answers.get(timeout=ANSWER_SECONDS)
    except queue.Empty:
        why = f"its control service has not answered for {ANSWER_SECONDS:.0f} s"
    if why:
        raise _lost(why)


def _lost(why: str) -> ClusterLost:
    hint = "what has finished is kept; run the same command again"
    return ClusterLost(f"the Ray cluster was lost: {why}", hint=hint)


def _ask_whether_alive(answers: queue.Queue[str]) -> None:
    import ray

    try:
        own = ray.get_runtime_context().get_node_id()
        alive = any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())
        answers.put("" if alive else "the node this process is connected to is gone")
    except Exception as error:
        answers.put(one_line(error))


def worker_log() -> str:
    """The file this worker's output goes to, with its machine's name where the driver is on another one.

    Empty when the output does not go to a file.
    """
    with contextlib.suppress(OSError):
        target = os.readlink("/proc/self/fd/2")
        if Path(target).is_file():
            here = socket.gethostname()
            return target if os.environ.get(DRIVER_VARIABLE, here) == here else f"{here}:{target}"
    return ""


def _call_in_worker(function: Callable[..., Any], args: tuple[Any, ...]) -> Called:
    return call(function, args, worker_log())


def run_graph(
    tasks: Mapping[str, GraphTask], *, in_flight: int | None = None, retries: int = TASK_RETRIES
) -> Iterator[TaskEvent]:
    """Run a graph as Ray tasks, yielding events as they happen.

    A task's exception fails it and skips what needs it; the others go on. A task whose worker dies is started
    again up to ``retries`` times. What runs when the iterator is left early (``KeyboardInterrupt`` included) ends with
    the connection: cancelling it by force can bring Ray down when a task ends at that very moment.

    Args:
        tasks: the graph; ready tasks are handed out in its order.
        in_flight: at most so many are handed out at a time; by default as many as there are CPUs, at least 4.
        retries: see above.

    Raises ``ValueError`` for a graph that cannot run, :class:`ClusterLost` when the cluster goes away.
    """
    import ray
    from ray.exceptions import RayError

    frontier = Frontier(tasks)
    limit = in_flight or max(4, int(ray.cluster_resources().get("CPU", 0)))
    remote = ray.remote(_call_in_worker)
    running: dict[Any, str] = {}
    while True:
        while len(running) < limit and (key := frontier.take()) is not None:
            task = tasks[key]
            options = remote.options(
                num_cpus=task.cpus, num_gpus=task.gpus, max_retries=retries, retry_exceptions=False, name=key
            )
            running[options.remote(task.function, task.args)] = key
            yield TaskEvent(key, "started")
        if not running:
            return
        done, _ = ray.wait(list(running), num_returns=1, timeout=HEALTH_SECONDS)
        if not done:
            check_alive()
            continue
        key = running.pop(done[0])
        try:
            outcome = ray.get(done[0])
        except RayError as error:
            outcome = Called(error=f"its worker was lost: {one_line(error)}", traceback=str(error), again=True)
        yield outcome.event(key)
        if outcome.error:
            yield from skipped(frontier, key)
        else:
            frontier.finish(key)
