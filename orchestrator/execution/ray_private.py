"""Every private name of Ray and Ray Tune that the project uses, and what for.

Tried with Ray 2.60.0. Private names can change in any release: after an upgrade, run ``tests/orchestrator/execution``
and ``tests/orchestrator/test_security.py``. Nothing here imports Ray before it is called.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Collection, Iterator
from typing import Any


def configure_driver() -> None:
    """Keep Ray from starting an instance by itself, and from printing a paragraph for every worker that dies."""
    from ray._private import auto_init_hook, worker

    auto_init_hook.enable_auto_connect = False  # it would start one in a thread that outlives its cluster
    worker._worker_logs_enabled = False


@contextlib.contextmanager
def loopback_only() -> Iterator[None]:
    """Have an instance that is started in the block listen on the loopback interface only.

    ``ray.init`` has no argument for it.
    """
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = True


def find_running_instance() -> str | None:
    """Return the address of the Ray instance that runs on this machine, ``None`` without one."""
    from ray._private.services import canonicalize_bootstrap_address

    try:
        address: str | None = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        return None
    return address


def reload_config() -> None:
    """Have Ray's native code read its environment variables again; it read them when Ray was imported."""
    from ray._raylet import Config  # type: ignore[attr-defined]

    Config.initialize("")


def dead_vital_process() -> str:
    """Return the name of a process that has ended and that this process's own instance cannot work without.

    It is empty if there is none.
    """
    node = _node()
    ended = [] if node is None else [name for name, _ in node.dead_processes()]
    return next((name for name in ended if name in ("gcs_server", "raylet")), "")


def abandon() -> None:
    """Leave a connection whose shutdown hangs, as after the ``raylet`` was killed: kill what this process started."""
    from ray._private import worker

    atexit.unregister(worker.shutdown)  # or the interpreter would wait for it again when it ends
    if (node := _node()) is not None:
        with contextlib.suppress(Exception):
            node.kill_all_processes(check_alive=False, allow_graceful=False)


def actor_cache(controller: Any) -> Any | None:
    """Return the workers that Tune's controller keeps for reuse; ``None`` if a later Ray keeps them elsewhere."""
    return getattr(controller, "_actor_cache", None)


def discard_trials(controller: Any, finished: Collection[Any]) -> None:
    """Remove finished trials from the sets of Tune's controller. If a later Ray lacks one, only memory is wasted."""
    for name in ("_live_trials", "_stopped_trials", "_failed_trials", "_trials_to_cache"):
        getattr(controller, name, set()).difference_update(finished)


def trial_actor(trial: Any) -> Any:
    """Return the Ray actor that runs a trial."""
    return trial.temporary_state.ray_actor


def _node() -> Any | None:
    """Ray's record of the processes that this process has started or is connected to."""
    from ray._private import worker

    return worker._global_node
