"""Serves MLflow's web interface for one tracking store on this machine's loopback address, and links to searches."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from urllib.parse import urlencode

from orchestrator.tracking.client import open_client
from orchestrator.tracking.location import TrackingLocation
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize

HOST = "127.0.0.1"

_CURVES = "tags.kind = 'curve' and tags.ablation = 'false'"
"""The filter that finds the runs of the kind ``curve``, without ablations. Each run is about one method on one
backbone and domain."""

_MEANS = "tags.kind = 'mean' and tags.in_best_set = 'yes' and tags.ablation = 'false'"

_SEARCHES = {
    "means over seeds, for each dataset": ("tags.kind = 'aggregate'", "metrics.`accuracy_mean`"),
    "every cell": ("tags.kind = 'cell'", "attributes.start_time"),
}
"""Title of a search -> its filter, and the column that it is sorted by, the largest value first."""


def ui_command(location: TrackingLocation, port: int) -> list[str]:
    """Return the command that serves the interface.

    The server has one worker process. With more, MLflow answers every request on a kept-alive connection 40 ms late.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", location.uri, "--host", HOST]
    if location.artifacts is not None:
        command += ["--default-artifact-root", location.artifacts]
    return [*command, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]


def ui_environment() -> dict[str, str]:
    """Return the environment of the command that serves the interface: without telemetry and the job runner."""
    return {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # saves eight processes and 2 GB that this project does not use
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }


def check_port(port: int) -> None:
    """Raise ``UserError`` if another process uses the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise UserError(f"port {port} is taken", where="--port", hint=f"try --port {port + 1}") from None


def serve_ui(location: TrackingLocation, port: int) -> int:
    """Serve the interface until Ctrl-C, and return the server's exit code."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # `finally` below ends the server
    # The server runs in a new session. So Ctrl-C reaches only this process, and this process ends the server.
    with subprocess.Popen(ui_command(location, port), env=ui_environment(), start_new_session=True) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)


def ui_links(uri: str, experiment: str, base: str) -> dict[str, str]:
    """Return title -> address of the most useful searches in MLflow's web interface, which is at ``base``.

    There is a comparison of all methods for each track, domain, backbone and protocol, and a few searches of the whole
    experiment. If MLflow has no experiment of this name, the only address is that of the list of experiments.
    """
    client = open_client(uri)
    if (found := client.get_experiment_by_name(experiment)) is None:
        return {"experiments": f"{base}/#/experiments"}
    start = f"{base}/#/experiments/{found.experiment_id}/runs?"

    def link(search: str, order: str, **more: str) -> str:
        return start + urlencode({"searchFilter": search, "orderByKey": order, "orderByAsc": "false", **more})

    methods = Counter(
        tuple((name, run.data.params[name]) for name in ("track", "domain", "backbone", "protocol"))
        for run in client.search_runs([found.experiment_id], _CURVES, max_results=1000)
    )
    links = {}
    for place, count in sorted(methods.items()):
        search = " and ".join([_CURVES, *(f"params.{name} = '{value}'" for name, value in place)])
        title = f"{', '.join(value for _, value in place)}: {pluralize(count, 'method')}"
        links[title] = link(search, "metrics.`accuracy_by_shots`", compareRunsMode="CHART")
    means = client.search_runs([found.experiment_id], _MEANS, max_results=1)
    metric = means[0].data.tags.get("metric", "accuracy") if means else "accuracy"
    title = "the methods that may be the best, for each track, domain and k"
    links[title] = link(_MEANS, f"metrics.`{metric}_mean`")
    return links | {title: link(*search) for title, search in _SEARCHES.items()}
