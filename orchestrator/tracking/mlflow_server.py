"""MLflow's own server: what it is told, where its secrets lie, and when it is up."""

from __future__ import annotations

import configparser
import http.client
import ipaddress
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.tracking.database import write_secret
from orchestrator.tracking.supervised import Supervised
from orchestrator.util.errors import UserError, one_line

ADMIN = "admin"
ADMIN_PASSWORD = "admin-password"
"""The file of the folder that holds it."""

_SECRET_KEY = "secret-key"
_READY_SECONDS = 180.0
_TRIES = 2

_PRIVATE = ("10.*", "192.168.*", *(f"172.{number}.*" for number in range(16, 32)))
"""Addresses of private networks, as MLflow's own default has them."""


@dataclass(frozen=True)
class Serving:
    """What is served and where.

    Attributes:
        folder: keeps everything.
        artifacts: folder or URL of the runs' artifacts; ``None`` for a folder in ``folder``.
        database: a PostgreSQL that runs elsewhere, without its password; ``None`` starts one in ``folder``.
        host, port: to listen on.
        auth: ask for user and password; on loopback only may it be ``False``.
        names: further names this machine is called by in addresses.
    """

    folder: Path
    artifacts: str | None = None
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = 5000
    auth: bool = True
    names: tuple[str, ...] = ()

    @property
    def destination(self) -> str:
        """Where artifacts are written, as a URL or an absolute path."""
        given = self.artifacts or str(self.folder / "artifacts")
        return given if "://" in given else str(Path(given).expanduser().absolute())

    @property
    def address(self) -> str:
        """Where to find the server from this machine."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "") else "[::1]" if self.host == "::" else self.host
        return f"http://{f'[{host}]' if ':' in host and not host.startswith('[') else host}:{self.port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def mlflow_server(serving: Serving, uri: str, passwords: Mapping[str, str]) -> Supervised:
    """MLflow's server, not yet started. Addresses and secrets go through its environment, not its command line.

    One server process: with more, it answers every request on a kept-alive connection 40 ms late.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", serving.host, "--port", str(serving.port)]
    command += ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "_MLFLOW_"))}
    environment = {
        **inherited,
        **passwords,
        "MLFLOW_BACKEND_STORE_URI": uri,
        "MLFLOW_ARTIFACTS_DESTINATION": serving.destination,
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight processes and 2 GB for nothing this project uses
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_LOGGING_LEVEL": "ERROR",
        "PYTHONWARNINGS": "ignore",
    }
    if not is_loopback(serving.host):
        names = _names_of(serving)
        environment["MLFLOW_SERVER_ALLOWED_HOSTS"] = ",".join(
            pattern for name in names for pattern in (name, f"{name}:*")
        )
        environment["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"] = ",".join(f"http://{name}:{serving.port}" for name in names)
    if serving.auth:
        command += ["--app-name", "basic-auth"]
        environment |= {
            "MLFLOW_AUTH_CONFIG_PATH": str(_auth_config(serving.folder, uri)),
            "MLFLOW_AUTH_ADMIN_PASSWORD": _secret(serving.folder / ADMIN_PASSWORD),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": _secret(serving.folder / _SECRET_KEY),
        }
    return Supervised("MLflow", command, environment, serving.folder / "mlflow.log")


def _names_of(serving: Serving) -> list[str]:
    """What a browser may call this machine; anything else is a sign of a rebound name."""
    host = f"[{serving.host}]" if ":" in serving.host and not serving.host.startswith("[") else serving.host
    own = [socket.gethostname(), socket.getfqdn(), *serving.names]
    everywhere = _PRIVATE if serving.host in ("0.0.0.0", "::") else (host,)
    return list(dict.fromkeys(["localhost", "127.0.0.1", *everywhere, *own]))


def wait_ready(serving: Serving, mlflow: Supervised) -> None:
    """Wait until MLflow answers; making its tables takes ten seconds. Raises ``UserError`` when it ends instead."""
    deadline = time.monotonic() + _READY_SECONDS
    parts = urlsplit(serving.address)
    while True:
        try:
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        mlflow.look_after(lambda line: None)
        if mlflow.deaths >= _TRIES or time.monotonic() > deadline:
            said = [line for line in mlflow.last_words().splitlines() if line.strip()]
            raise UserError(f"MLflow does not start: {one_line(said[-1] if said else '')}", where=str(mlflow.log))
        time.sleep(0.1)


def _auth_config(folder: Path, uri: str) -> Path:
    """MLflow's own file: everybody with a password reads everything, and writes what is theirs.

    A password that was right stays so for five minutes: checking one takes 200 ms, of every request otherwise.
    """
    config = configparser.ConfigParser(interpolation=None)
    config["mlflow"] = {
        "default_permission": "READ",
        "database_uri": uri.replace("%", "%%"),  # MLflow reads it with interpolation
        "admin_username": ADMIN,
        "authorization_function": "mlflow.server.auth:authenticate_request_basic_auth",
        "auth_cache_ttl_seconds": "300",
    }
    path = folder / "auth.ini"
    with open(path, "w") as stream:
        config.write(stream)
    return path


def _secret(path: Path) -> str:
    """A secret of the folder, made on first use. Raises ``UserError`` for a file that holds none."""
    if not path.exists():
        write_secret(path, secrets.token_urlsafe(24))
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if len(text) < 12:
        raise UserError(
            "holds no secret of at least 12 characters", where=str(path), hint="remove the file, and one is made"
        )
    path.chmod(0o600)
    return text
