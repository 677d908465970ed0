"""MLflow's web interface on the right store, and the links that open it on something worth seeing.

MLflow's interface takes a whole view - columns, filter, order - from an experiment's tag called
``mlflow.sharedViewState.<name>`` when its address says ``viewStateShareKey=<name>``: that is what its own "share"
button uses. Such views are kept with every experiment; columns, sections and charts are in MLflow's own words.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.util.errors import UserError

HOST = "127.0.0.1"

VIEW_TAG = "mlflow.sharedViewState."

_COMMON: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "runsHiddenMode": "SHOW_ALL",  # MLflow's own choice is the ten latest
}

_WHERE = ("params.`track`", "params.`protocol`", "tags.`selects_on_test`")


def _section(name: str, *, columns: int, height: int) -> dict[str, Any]:
    """A section of charts, as many beside each other as ``columns``, ``height`` pixels high."""
    flags = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
    return {"uuid": name, "name": name, "columns": columns, "cardHeight": height, **flags}


def _chart(section: str, metric: str) -> dict[str, Any]:
    """One metric over its steps; MLflow titles it with the metric's name."""
    return {
        "uuid": metric,
        "type": "LINE",
        "metricSectionId": section,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "displayPoints": True,
        "runsCountToCompare": 100,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
        "deleted": False,
        "isGenerated": False,
    }


_MEAN, _DEVIATION = "Accuracy against k (step = k)", "Standard deviation over seeds (step = k), epochs"

_VIEWS: dict[str, dict[str, Any]] = {
    "cells": {
        "searchFilter": "tags.kind = 'cell'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`seed`", "params.`backbone`", *_WHERE),
            *("metrics.`accuracy`", "metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
            *("metrics.`trainable_parameters`", "metrics.`fit_seconds`"),
        ],
    },
    "means": {
        "searchFilter": "tags.kind = 'aggregate'",
        "orderByKey": "metrics.`accuracy_mean`",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`backbone`", "tags.`accuracy`", *_WHERE),
            *("metrics.`accuracy_mean`", "metrics.`accuracy_std`", "metrics.`n`"),
            *("metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
        ],
    },
    "methods": {
        "searchFilter": "tags.kind = 'cell'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": ["metrics.`accuracy`", "metrics.`gain_over_zero_shot`", "metrics.`fit_seconds`"],
        "groupBy": {
            "aggregateFunction": "average",
            "groupByKeys": [{"mode": "param", "groupByData": name} for name in ("method",)],
        },
    },
    "curves": {
        "searchFilter": "tags.kind = 'curve'",
        "orderByKey": "metrics.`accuracy_by_shots`",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`domain`", "params.`backbone`", *_WHERE),
            *("metrics.`accuracy_by_shots`", "metrics.`accuracy_by_epoch`"),
        ],
        "compareRunSections": [
            _section(_MEAN, columns=1, height=480),
            _section(_DEVIATION, columns=2, height=320),
        ],
        "compareRunCharts": [
            _chart(_MEAN, "accuracy_by_shots"),
            _chart(_DEVIATION, "accuracy_by_shots_std"),
            _chart(_DEVIATION, "accuracy_by_epoch"),
        ],
    },
}

VIEWS = {
    "curves": "accuracy against k, one line per method",
    "means": "mean and sample standard deviation over seeds",
    "methods": "cells grouped by method",
    "cells": "every cell",
}
"""What each view shows."""


def experiment_tags(domains: Iterable[str] = ()) -> dict[str, str]:
    """Tags of an experiment: what kind it is, and its views; with a view of the curves for each of the domains."""
    views = dict(_VIEWS)
    for domain in domains:
        filtered = f"{views['curves']['searchFilter']} and params.domain = '{domain}'"
        views[f"curves-{domain}"] = {**views["curves"], "searchFilter": filtered}
    tags = {f"{VIEW_TAG}{name}": json.dumps({**_COMMON, **view}) for name, view in views.items()}
    return {"mlflow.experimentKind": "custom_model_development", **tags}


def view_link(base: str, experiment_id: str, view: str) -> str:
    """The address of a view, ``base`` being the server's."""
    mode = "&compareRunsMode=CHART" if view.startswith("curves") else ""
    return f"{base}/#/experiments/{experiment_id}/runs?viewStateShareKey={view}{mode}"


def compare_link(base: str, experiment_id: str, run_ids: Sequence[str]) -> str:
    """The address of MLflow's comparison of some runs."""
    runs, experiments = (quote(json.dumps(list(ids), separators=(",", ":"))) for ids in (run_ids, [experiment_id]))
    return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"


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
