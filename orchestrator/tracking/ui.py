"""Serves MLflow's web interface for one tracking store, on this machine's loopback address."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys

from orchestrator.tracking.location import TrackingLocation
from orchestrator.util.errors import UserError

HOST = "127.0.0.1"


def ui_command(location: TrackingLocation, port: int) -> list[str]:
    """The command that serves the interface.

    It has one worker process: with more, MLflow answers every request on a kept-alive connection 40 ms late.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", location.uri, "--host", HOST]
    if location.artifacts is not None:
        command += ["--default-artifact-root", location.artifacts]
    return [*command, "--port", str(port), "--workers", "1", "--uvicorn-opts", "--log-level warning"]


def ui_environment() -> dict[str, str]:
    """The environment of that command: without telemetry, and without the job runner."""
    return {
        **os.environ,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes and 2 GB for nothing this project uses
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }


def check_port(port: int) -> None:
    """Raise ``UserError`` for a port that is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            raise UserError(f"port {port} is taken", where="--port", hint=f"try --port {port + 1}") from None


def serve_ui(location: TrackingLocation, port: int) -> int:
    """Serve until Ctrl-C; returns the server's exit code."""
    command = ui_command(location, port)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that `finally` is reached
    # The server gets a session of its own: Ctrl-C reaches only this process, which then ends the server's whole group.
    with subprocess.Popen(command, env=ui_environment(), start_new_session=True) as server:
        try:
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGTERM)
