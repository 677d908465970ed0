"""Join a Ray cluster that runs already: find it, authenticate, check its workers, and read how far it can grow.

Ray has a call for the limits of its autoscaler (``state.get_max_resources_from_cluster_config``), but ``ray up`` does
not fill in the data behind it. Instead, a worker on the head reads the autoscaler's configuration file, whose path is
in the command line of the autoscaler's process.
"""

import contextlib
import logging
import os
import re
import secrets
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from orchestrator.core.events import Resources
from orchestrator.execution.process import delay_interrupt, standard_error_to
from orchestrator.util.errors import UserError, one_line

WORKER_SECONDS = 150.0
"""How long the first worker of a joined cluster may take to answer. Ray starts another one after 60 s."""

HEAD_RESOURCE = "node:__internal_head__"
"""A resource that the head of every cluster has, and no other node."""

CONFIG_OPTION, ADDRESS_OPTION = "--autoscaling-config=", "--gcs-address="
"""Options of the autoscaler's process."""

_WRONG_TOKEN = b"InvalidAuthToken"
"""Ray's native code writes this to standard error if the token is missing or wrong. Ray's exception does not say so."""
_TOKEN = secrets.token_hex(32)
"""The token of all Ray instances that this process starts. One token is enough, because Ray reads it only once."""

VERSIONS = re.compile(r"Ray: (\S+)\s+Python: (\S+)")
"""Matches versions of Ray and Python in the error that Ray raises if the cluster and this process have different
versions. The first match has the versions of the cluster, the second match those of this process."""


def token_mode() -> dict[str, str]:
    """Return the environment variable that turns Ray's token authentication on.

    The result is empty if this machine has no token, or if the variable is already set. A driver that joins by an
    explicit address does not turn the authentication on by itself, and a cluster with a token refuses such a driver.

    Set the variable for the time of the connection only. If it stays set, a local instance that this process starts
    later refuses this process.
    """
    return {"RAY_AUTH_MODE": "token"} if "RAY_AUTH_MODE" not in os.environ and _has_token() else {}


def own_token() -> dict[str, str]:
    """Return the environment variable with a token for a local Ray instance; empty if this machine has a token.

    Without the variable, Ray would write a token into the home folder, which may be read-only.
    """
    return {} if _has_token() else {"RAY_AUTH_TOKEN": _TOKEN}


def _has_token() -> bool:
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")
    return "RAY_AUTH_TOKEN" in os.environ or os.path.isfile(file)


def check_address(address: str) -> None:
    """Raise ``UserError`` if the address is not ``HOST:PORT``, or if nothing listens there.

    ``auto`` and addresses with ``://`` are not checked.
    """
    if address == "auto" or "://" in address:
        return
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit():
        hint = "give 'auto' or HOST:PORT"
        raise UserError(f"{address!r} is not the address of a Ray cluster", where="--address", hint=hint)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except OSError as error:
        raise _cannot_join(address, str(error)) from None


def join(address: str, worker_env: Mapping[str, str]) -> None:
    """Connect this process to the cluster at ``auto`` or ``host:port``. Raises ``UserError`` if that fails.

    ``worker_env`` are environment variables of this driver's workers.
    """
    import ray

    with tempfile.TemporaryFile() as messages:
        try:
            with delay_interrupt(), standard_error_to(messages.fileno()):
                ray.init(
                    address=address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": dict(worker_env)},
                )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            messages.seek(0)
            if _WRONG_TOKEN in messages.read():
                found = "another one" if os.environ.get("RAY_AUTH_MODE") == "token" else "none"
                hint = "copy ~/.ray/auth_token from the cluster's head to this machine, readable by you alone"
                what = f"the Ray cluster asks for its token, and this machine has {found}"
                raise _of_address(address, what, hint) from None
            if len(versions := VERSIONS.findall(str(error))) == 2:
                theirs, own = (f"Ray {ray_version} and Python {python}" for ray_version, python in versions)
                hint = "use the same versions here: a worker reads what the driver wrote"
                raise _of_address(address, f"the cluster runs {theirs}, but this process runs {own}", hint) from None
            raise _cannot_join(address, one_line(error)) from error


def check_workers(address: str) -> Resources:
    """Check that a worker of the joined cluster answers; return the CPUs and GPUs that the autoscaler can add.

    The worker runs on the head, where the autoscaler's configuration is. It asks for no CPU, so a busy cluster can
    start it.

    Raises ``UserError`` when no worker answers. A cluster without token authentication, for example, accepts a driver
    that has a token, and then loses every worker before it starts.
    """
    import ray
    from ray.exceptions import RayError

    task = ray.remote(num_cpus=0, resources={HEAD_RESOURCE: 0.001}, max_retries=0)(_autoscaler_limits).remote()
    try:
        limits: Resources = ray.get(task, timeout=WORKER_SECONDS)
        return limits
    except (RayError, TimeoutError) as error:
        hint = "are the project and its Python the same on every node?"
        if os.environ.get("RAY_AUTH_MODE") == "token":
            hint += " if the cluster runs without token authentication, set RAY_AUTH_MODE=disabled here, too"
        what = f"the Ray cluster answers, but no worker of it does ({one_line(error, 160)})"
        raise _of_address(address, what, hint) from error


def _autoscaler_limits() -> Resources:
    import ray

    return read_autoscaler_limits(ray.get_runtime_context().gcs_address)


def read_autoscaler_limits(gcs_address: str) -> Resources:
    """Return the CPUs and GPUs of all nodes that the autoscaler of a cluster can start besides the head.

    Call this on the head of the cluster at ``gcs_address``. The limits are read from the configuration file of the
    autoscaler on this head; without an autoscaler, both are 0. For a cluster with ``provider: local``, the file has no
    sizes of nodes, so both are 0 too.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError, yaml.YAMLError, AttributeError, TypeError, ValueError):
            options = process.cmdline()
            files = [option.removeprefix(CONFIG_OPTION) for option in options if option.startswith(CONFIG_OPTION)]
            if files and ADDRESS_OPTION + gcs_address in options:
                return limits_from_config(yaml.safe_load(Path(files[0]).read_text()))
    return Resources(0, 0)


def limits_from_config(config: dict[str, Any]) -> Resources:
    """Return the most CPUs and the most GPUs that all nodes but the head can have together.

    ``config``: the autoscaler's configuration, as ``ray up`` has completed it.
    """
    head = config.get("head_node_type")
    node_types = [node for name, node in config["available_node_types"].items() if name != head]

    def total(resource: str) -> float:
        """Return the largest amount of a resource that all nodes but the head can have together.

        The number of nodes has a limit for each type of node, and another one for the whole cluster.
        """
        sizes = [((node.get("resources") or {}).get(resource, 0), node.get("max_workers", 0)) for node in node_types]
        nodes_left, amount = int(config.get("max_workers", 0)), 0.0
        for size, max_count in sorted(sizes, reverse=True):
            count = min(nodes_left, int(max_count))
            nodes_left, amount = nodes_left - count, amount + count * float(size)
        return amount

    return Resources(total("CPU"), total("GPU"))


def _cannot_join(address: str, reason: str) -> UserError:
    hint = "is the cluster running (`ray status`)? is the port open? is ~/.ray/auth_token the cluster's token?"
    return _of_address(address, f"no Ray cluster answers ({reason})", hint)


def _of_address(address: str, what: str, hint: str) -> UserError:
    return UserError(what, where=f"--address {address}", hint=hint)
