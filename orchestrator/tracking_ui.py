"""MLflow's web interface on the right store, and the links that open it on something worth seeing.

MLflow's interface takes a whole view - columns, filter, order - from an experiment's tag called
``mlflow.sharedViewState.<name>`` when its address says ``viewStateShareKey=<name>``: that is what its own "share"
button uses. Three such views are kept with every experiment.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from orchestrator.errors import UserError

HOST = "127.0.0.1"

_VIEWS: dict[str, dict[str, Any]] = {
    "cells": {
        "searchFilter": "tags.kind = 'cell'",
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`seed`", "params.`backbone`"),
            *("params.`track`", "params.`protocol`", "tags.`selects_on_test`"),
            *("metrics.`accuracy`", "metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
            *("metrics.`trainable_parameters`", "metrics.`fit_seconds`"),
        ],
    },
    "means": {
        "searchFilter": "tags.kind = 'aggregate'",
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`backbone`"),
            *("params.`track`", "params.`protocol`", "tags.`selects_on_test`"),
            *("metrics.`accuracy_mean`", "metrics.`accuracy_std`", "metrics.`n`"),
            *("metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
        ],
    },
    "curves": {
        "searchFilter": "tags.kind = 'curve'",
        "selectedColumns": [
            *("params.`method`", "params.`domain`", "params.`backbone`", "params.`track`", "params.`protocol`"),
            *("tags.`selects_on_test`", "metrics.`accuracy_by_shots`", "metrics.`accuracy_by_epoch`"),
        ],
    },
}

VIEWS = {
    "cells": "every cell",
    "means": "mean and sample standard deviation over seeds",
    "curves": "accuracy against k, one line per method",
}
"""What each view shows."""


def experiment_tags() -> dict[str, str]:
    """Tags of an experiment: what kind it is, and its views."""
    common = {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
    }
    views = {f"mlflow.sharedViewState.{name}": json.dumps({**common, **view}) for name, view in _VIEWS.items()}
    return {"mlflow.experimentKind": "custom_model_development", **views}


def view_link(base: str, experiment_id: str, view: str) -> str:
    """The address of a view, ``base`` being the server's."""
    mode = "&compareRunsMode=CHART" if view == "curves" else ""
    return f"{base}/#/experiments/{experiment_id}/runs?viewStateShareKey={view}{mode}"


def ui_command(uri: str, artifact_root: str | None, port: int) -> list[str]:
    """The command that serves the interface on this machine's loopback address.

    One server process: with more, MLflow answers every request on a kept-alive connection 40 ms late.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", HOST]
    if artifact_root is not None:
        root = artifact_root if "://" in artifact_root else Path(artifact_root).absolute().as_uri()
        command += ["--default-artifact-root", root]
    return [*command, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]


def serve_ui(uri: str, artifact_root: str | None, port: int) -> int:
    """Serve until Ctrl-C; returns the server's exit code. Raises ``UserError`` for a port that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise UserError(f"port {port} is taken", where="--port", hint=f"try --port {port + 1}") from None
    environment = {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes and 2 GB for nothing this project uses
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }
    command = ui_command(uri, artifact_root, port)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that `finally` is reached
    # A session of its own: a Ctrl-C reaches only this process, which then ends the server with all it started.
    with subprocess.Popen(command, env=environment, start_new_session=True) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
