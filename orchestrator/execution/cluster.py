"""Connect to Ray for a ``with`` block: start an instance on this machine, or join a running cluster."""

import atexit
import contextlib
import gc
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from orchestrator.core.events import Resources
from orchestrator.execution.join import check_address, check_workers, join, own_token, token_mode
from orchestrator.execution.process import delay_interrupt, environment_variables
from orchestrator.util.errors import UserError, one_line
from orchestrator.util.scratch import ScratchFolder

SHUTDOWN_SECONDS = 20.0
"""How long Ray's shutdown may take before this process kills the Ray processes that it started. Then it waits for the
shutdown for as long again."""

LOOPBACK = "127.0.0.1"

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_ENABLE_AUTO_CONNECT": "0",  # with 1, a thread that calls Ray after the shutdown starts another Ray instance
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # workers stay in the folder where they started: relative store paths depend on it
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a task or cell that requests no GPU sees no GPU
    "RAY_prestart_worker_first_driver": "0",  # with 1, a worker for each CPU starts at once, and cells do not use it
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, Ray would copy the working folder, photographs included
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}

_LONGEST_BASE = 20
"""Largest number of characters in the path of the folder that holds Ray's folder. If the system's temporary folder has
a longer path, ``/tmp`` is used. The paths of Ray's sockets are about 84 characters longer, and 107 is their limit."""


@contextlib.contextmanager
def connect(
    address: str | None = None,
    *,
    cpus: int | None = None,
    gpus: int | None = None,
    worker_env: Mapping[str, str] | None = None,
) -> Iterator[Resources]:
    """Start a Ray instance on this machine, or join a running cluster.

    ``address``: ``None`` starts an instance; ``"auto"`` and ``"host:port"`` join a cluster. ``worker_env``: environment
    variables of every worker.

    Yields the CPUs and GPUs that the autoscaler of a cluster can add; 0 for a local instance. The connection ends with
    the block, and so does a local instance. A local instance listens on the loopback interface only, has no dashboard,
    and writes its workers' output to files. It may use ``cpus`` CPUs and ``gpus`` GPUs, by default all of the machine.

    Raises ``UserError`` if there is no cluster at ``address``, or if it does not answer.
    """
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with contextlib.ExitStack() as stack:
        if address is not None:
            stack.enter_context(environment_variables(token_mode()))  # Ray reads RAY_AUTH_MODE once, on its import
            check_address(address)
        else:  # Ray reads both on its import
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray listens on loopback only, see _start_instance
            os.environ.update(RAY_grpc_enable_http_proxy="0")  # with 1, Ray connects to this machine by the proxy
        with contextlib.suppress(ImportError):  # a private switch: without it, Ray prints a paragraph for a dead worker
            from ray._private import worker

            worker._worker_logs_enabled = False
        if address is None:
            base = tempfile.gettempdir()
            base = base if len(base) <= _LONGEST_BASE else "/tmp"
            folder = stack.enter_context(ScratchFolder("ray", Path(base)))
            stack.callback(_shut_down)
            _start_instance(folder, cpus, gpus, worker_env or {})
            yield Resources(0, 0)
        else:
            stack.callback(_shut_down)
            join(address, {**RAY_ENVIRONMENT, **(worker_env or {})})
            yield check_workers(address)


def _start_instance(folder: Path, cpus: int | None, gpus: int | None, worker_env: Mapping[str, str]) -> None:
    """Start a Ray instance on this machine and connect to it. Its files are in ``folder``, which others cannot open.

    Ray gets a folder inside ``folder``, because each of Ray's workers gives every user access to Ray's folder.
    """
    import ray

    # If Ray was imported before ``connect`` set the environment variable, only this private name keeps Ray on the
    # loopback interface. The end of this function checks that.
    with contextlib.suppress(ImportError):
        from ray._private import ray_constants

        ray_constants.ENABLE_RAY_CLUSTER = False
    root = str(Path(__file__).resolve().parents[2])  # workers import this project from this folder, installed or not
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    try:
        with delay_interrupt(), environment_variables({**worker_env, **own_token(), "PYTHONPATH": python_path}):
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder / "r"),
            )
    except Exception as error:  # Ray raises a plain Exception if one of its processes ends
        hint = "run the same command again; --local runs without Ray"
        raise UserError(f"Ray could not start on this machine: {one_line(error)}", hint=hint) from error
    if ray.util.get_node_ip_address() != LOOPBACK:
        raise RuntimeError("this version of Ray opens its ports to other machines, so no instance is started here")


def _shut_down() -> None:
    """End the connection, and the instance if this process has started it.

    Python's garbage collector is off during the shutdown, and stays off if the shutdown hangs. The reason: for a moment
    Ray's native part is gone, and Ray's Python part does not know it yet. Tune leaves reference cycles that hold Ray's
    object references. If such a cycle is collected at that moment, this process ends at once with exit code 1.
    """
    import ray

    shutdown = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    with delay_interrupt():
        gc.collect()
        gc.disable()
        shutdown.start()
        shutdown.join(SHUTDOWN_SECONDS)
        if shutdown.is_alive():  # it hangs or is slow, so the Ray processes that this process started are killed
            atexit.unregister(ray.shutdown)  # otherwise Python calls ray.shutdown again when the interpreter ends
            with contextlib.suppress(Exception):  # private names
                from ray._private import worker

                worker._global_node.kill_all_processes(check_alive=False, allow_graceful=False)
            shutdown.join(SHUTDOWN_SECONDS)  # without this, a slow shutdown ended this process with exit code 1
        if not shutdown.is_alive():
            gc.enable()
