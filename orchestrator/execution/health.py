"""Detects that the Ray cluster was lost, because Ray itself can wait for a lost cluster forever."""

import contextlib
import threading
from queue import Empty, Queue

from orchestrator.util.errors import UserError, one_line

HEALTH_CHECK_SECONDS = 2.0
"""Interval of the health check while the driver waits and nothing happens."""

ANSWER_SECONDS = 20.0
"""Seconds without an answer after which Ray's control service counts as lost. After 60 s, Ray would end this process
without a Python exception."""


class ClusterLost(UserError):
    """The Ray cluster was lost while cells or tasks ran."""

    def __init__(self, reason: str) -> None:
        hint = "what has finished is kept; run the same command again"
        super().__init__(f"the Ray cluster was lost: {reason}", hint=hint)


def check_alive() -> None:
    """Raise :class:`ClusterLost` when the node this driver is connected to is gone or does not answer.

    Ray itself waits without end for results of a node whose ``raylet`` was killed.
    """
    import ray

    with contextlib.suppress(ImportError, AttributeError):  # private names, tried with Ray 2.60
        from ray._private import worker

        for process, _ in worker._global_node.dead_processes():  # only processes that this process started
            if process in ("gcs_server", "raylet"):
                raise ClusterLost(f"Ray's process {process} has ended")

    def find_own_node() -> None:
        try:
            own = ray.get_runtime_context().get_node_id()
            alive = any(node["NodeID"] == own and node["Alive"] for node in ray.nodes())
            answers.put("" if alive else "the node this process is connected to is gone")
        except Exception as error:
            answers.put(one_line(error))

    answers: Queue[str] = Queue()
    threading.Thread(target=find_own_node, daemon=True).start()
    try:
        problem = answers.get(timeout=ANSWER_SECONDS)
    except Empty:
        problem = f"Ray's control service has not answered for {ANSWER_SECONDS:.0f} s"
    if problem:
        raise ClusterLost(problem)
