"""Connect to Ray: start an instance on this machine or join a running cluster, describe it, and end the connection."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.execution import ray_private
from orchestrator.execution.autoscaler import AutoscalerLimits
from orchestrator.execution.join import HEAD_RESOURCE, check_workers, find_address, join, use_token
from orchestrator.execution.process import delay_interrupt, environment_variables
from orchestrator.util.scratch import ScratchFolder

SHUTDOWN_SECONDS = 20.0
"""How long Ray's shutdown may take before this process leaves without it."""

RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # send no usage statistics
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # a relative store path means the same in a worker as in the driver
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # work that asked for no GPU sees none
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
}

_MAX_FOLDER_LENGTH = 40
"""Ray's sockets lie about 65 characters below its folder, and a socket's path may have 107."""


@dataclass(frozen=True)
class ClusterInfo:
    """The resources of a cluster.

    Attributes:
        cpus, gpus: logical CPUs and GPUs of all nodes that are alive.
        max_size: (cpus, gpus) once the autoscaler has started every node it may; the current size without one.
        logs: folder on this machine with the output of workers.
    """

    cpus: float
    gpus: float
    max_size: tuple[float, float]
    logs: Path


class Cluster:
    """A connection to Ray. As a context manager, it ends the connection when the block is left."""

    def __init__(self, scratch: ScratchFolder | None = None, *, owned: bool = True) -> None:
        self._scratch, self._owned, self._limits = scratch, owned, AutoscalerLimits()

    @classmethod
    def connect(
        cls,
        address: str | None = None,
        *,
        cpus: int | None = None,
        gpus: int | None = None,
        worker_env: Mapping[str, str] | None = None,
    ) -> Cluster:
        """Start an instance on this machine (``None``), or join a running cluster (``"auto"``, ``"host:port"``).

        A local instance listens on the loopback interface only, has no dashboard, writes its workers' output to
        files, and ends with this process. When this process is connected already and ``address`` is ``None``, the
        existing connection is used and left open.

        Args:
            address: which cluster.
            cpus, gpus: what a local instance may use; by default what the machine has.
            worker_env: environment variables for every worker.

        Raises ``UserError`` when there is no cluster at ``address``, or it does not answer.
        """
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if address is not None:
            use_token()
            address = find_address(address)
        import ray

        ray_private.disable_auto_connect()
        ray_private.silence_dead_workers()
        if ray.is_initialized():
            if address is not None:
                raise RuntimeError(f"cannot join {address}: this process is connected to a Ray instance already")
            return cls(owned=False)
        if address is None:
            return cls(_start_instance(cpus, gpus, worker_env or {}))
        join(address, {**RAY_ENVIRONMENT, **(worker_env or {})})
        cluster = cls()
        try:
            cluster._limits = check_workers(address)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def describe(self) -> ClusterInfo:
        """The cluster's resources now, and what they can grow to."""
        import ray

        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]

        def total(name: str) -> float:
            return float(sum(node.get(name, 0.0) for node in nodes))

        def maximum(name: str, startable: float) -> float:
            head = float(sum(node.get(name, 0.0) for node in nodes if HEAD_RESOURCE in node))
            return max(total(name), head + startable)

        return ClusterInfo(
            cpus=total("CPU"),
            gpus=total("GPU"),
            max_size=(maximum("CPU", self._limits.cpus), maximum("GPU", self._limits.gpus)),
            logs=ray_private.log_folder(),
        )

    def close(self) -> None:
        """End the connection, and the instance if this process has started it. Closing twice is harmless."""
        if not self._owned:
            return
        self._owned = False
        import ray

        shutdown = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
        with delay_interrupt(), _no_garbage_collection(shutdown):
            shutdown.start()
            shutdown.join(SHUTDOWN_SECONDS)
            if shutdown.is_alive():
                ray_private.abandon()
        if self._scratch is not None:
            self._scratch.remove()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _start_instance(cpus: int | None, gpus: int | None, worker_env: Mapping[str, str]) -> ScratchFolder:
    """Start a Ray instance on this machine and connect to it; returns its folder."""
    import ray

    root = str(Path(__file__).resolve().parents[2])
    # Workers import this project from where this process did, installed or not.
    python_path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    base = tempfile.gettempdir()
    scratch = ScratchFolder("ray", Path(base if len(base) < _MAX_FOLDER_LENGTH - 17 else "/tmp"))
    try:
        with (
            ray_private.loopback_only(),
            delay_interrupt(),
            environment_variables({**worker_env, "PYTHONPATH": python_path}),
        ):
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                _temp_dir=str(scratch.path),
            )
    except BaseException:
        ray.shutdown()
        scratch.remove()
        raise
    scratch.path.chmod(0o700)  # Ray opens it to every user, and it holds sockets and workers' logs
    return scratch


@contextlib.contextmanager
def _no_garbage_collection(shutdown: threading.Thread) -> Iterator[None]:
    """Disable Python's garbage collector in all threads while Ray shuts down; for good if the shutdown hangs.

    For a moment Ray's native part is gone, and its Python part does not know it yet. Tune leaves reference cycles that
    hold object references. If one of them is collected at that moment, this process ends at once with exit code 1.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled and not shutdown.is_alive():
            gc.enable()
