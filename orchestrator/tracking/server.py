"""The tracking server of a cluster's head: PostgreSQL, and MLflow on it behind basic auth, in one folder.

Everything it keeps is in the folder: the database, the artifacts unless they go elsewhere, the secrets in files of
mode 0600, the logs. Users and their permissions are MLflow's own and lie in the same database.
"""

from __future__ import annotations

import configparser
import errno
import http.client
import ipaddress
import os
import secrets
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from orchestrator.errors import UserError
from orchestrator.events import one_line
from orchestrator.locks import Held, held
from orchestrator.tracking.database import check_database, find_postgres, with_driver, write_secret
from orchestrator.tracking.supervised import Supervised

ADMIN = "admin"
ARTIFACTS_VARIABLE = "BOLT_TRACKING_ARTIFACTS"
SERVER_VARIABLE = "BOLT_TRACKING_SERVER"

_LOCK = "serving.lock"
_ADMIN_PASSWORD = "admin-password"
_SECRET_KEY = "secret-key"
_DRIVER_ENVIRONMENT = "driver.env"

_READY_SECONDS = 180.0
_TRIES = 2
_PORT_SECONDS = 2.0
_LOOK_SECONDS = 0.2

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


def serve(serving: Serving, say: Callable[[str], None]) -> int:
    """Serve until Ctrl-C or SIGTERM, starting again what dies. Returns the exit code.

    Raises ``UserError`` for what the user has to mend first.
    """
    if not serving.auth and not is_loopback(serving.host):
        raise UserError(
            f"{serving.host} is reached from other machines, so passwords cannot be switched off",
            where="--no-auth",
            hint="leave --host out and reach it with `ssh -L`, or leave --no-auth out",
        )
    _check_packages(serving)
    with ExitStack() as stack:
        postgres = None if serving.database else find_postgres(serving.folder)
        _make_folder(serving.folder, 0o700 if postgres is None or postgres.user is None else 0o711)
        try:
            stack.enter_context(held(serving.folder / _LOCK))
        except Held as process:
            raise UserError(
                f"{serving.folder} is served already, by process {process}",
                hint="one server is enough; to serve elsewhere as well, give another --folder and --port",
            ) from None
        _check_port(serving.host, serving.port)
        stack.enter_context(_ending_on_signals())
        servers = []
        if postgres is not None:
            postgres.make()
            server = postgres.process()
            stack.callback(server.stop)
            server.start()
            postgres.wait_ready(server)
            servers.append(server)
            uri, passwords = postgres.uri, {"PGPASSFILE": str(postgres.password_file)}
        else:
            assert serving.database is not None
            check_database(serving.database)
            uri, passwords = with_driver(serving.database), {}
        mlflow = _mlflow(serving, uri, passwords)
        stack.callback(mlflow.stop)
        mlflow.start()
        _wait_ready(serving, mlflow)
        servers.append(mlflow)
        write_secret(serving.folder / _DRIVER_ENVIRONMENT, _driver_environment(serving, uri, passwords))
        for line in _welcome(serving):
            say(line)
        try:
            while True:
                for server in servers:
                    server.look_after(lambda line: say(f"{time.strftime('%H:%M:%S')} {line}"))
                time.sleep(_LOOK_SECONDS)
        except KeyboardInterrupt:
            say("ending")
    return 0


def driver_environment(folder: Path, *, http: bool = False) -> str:
    """Shell lines that have a driver track to the server of ``folder``: straight into its database, or over HTTP.

    No secret is among them, only the names of the files that hold them. Raises ``UserError`` for a folder that has
    not been served from yet.
    """
    path = folder / _DRIVER_ENVIRONMENT
    try:
        text = path.read_text()
    except OSError:
        raise UserError(
            f"nothing has been served from {folder} yet", where="--folder", hint="python -m orchestrator tracking serve"
        ) from None
    if not http:
        return text
    address = next(line.partition("=")[2] for line in text.splitlines() if f" {SERVER_VARIABLE}=" in line)
    password = shlex.quote(str(folder / _ADMIN_PASSWORD))
    return (
        f"export MLFLOW_TRACKING_URI={address}\n"
        f"export MLFLOW_TRACKING_USERNAME={ADMIN}\n"
        f'export MLFLOW_TRACKING_PASSWORD="$(cat {password})"\n'
    )


def _driver_environment(serving: Serving, uri: str, passwords: Mapping[str, str]) -> str:
    values = {
        "MLFLOW_TRACKING_URI": uri,
        **passwords,
        ARTIFACTS_VARIABLE: serving.destination,
        SERVER_VARIABLE: serving.address,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def _welcome(serving: Serving) -> list[str]:
    folder = shlex.quote(str(serving.folder))
    lines = [f"MLflow at {serving.address} until Ctrl-C"]
    if serving.auth:
        lines.append(f"  user {ADMIN}, password in {serving.folder / _ADMIN_PASSWORD}")
    if is_loopback(serving.host):
        lines.append(f"  from your own machine: ssh -L {serving.port}:127.0.0.1:{serving.port} THIS-MACHINE")
    else:
        lines.append("  passwords travel unencrypted: in a network of others, leave --host out and use `ssh -L`")
    lines.append(f'  drivers on this machine: eval "$(python -m orchestrator tracking env --folder {folder})"')
    return lines


def _mlflow(serving: Serving, uri: str, passwords: Mapping[str, str]) -> Supervised:
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
            "MLFLOW_AUTH_ADMIN_PASSWORD": _secret(serving.folder / _ADMIN_PASSWORD),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": _secret(serving.folder / _SECRET_KEY),
        }
    return Supervised("MLflow", command, environment, serving.folder / "mlflow.log")


def _names_of(serving: Serving) -> list[str]:
    """What a browser may call this machine; anything else is a sign of a rebound name."""
    host = f"[{serving.host}]" if ":" in serving.host and not serving.host.startswith("[") else serving.host
    own = [socket.gethostname(), socket.getfqdn(), *serving.names]
    everywhere = _PRIVATE if serving.host in ("0.0.0.0", "::") else (host,)
    return list(dict.fromkeys(["localhost", "127.0.0.1", *everywhere, *own]))


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


def _make_folder(folder: Path, mode: int) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        (folder / _LOCK).open("a").close()
    except OSError as error:
        raise UserError(f"{folder} cannot be written to: {error.strerror}", where="--folder") from None


def _check_packages(serving: Serving) -> None:
    from importlib.util import find_spec

    wanted = {"psycopg2": "psycopg2"} | ({"flask_wtf": "mlflow[auth]"} if serving.auth else {})
    if serving.destination.startswith("s3://"):
        wanted["boto3"] = "boto3"
    missing = [package for module, package in wanted.items() if find_spec(module) is None]
    if missing:
        raise UserError(f"not installed: {', '.join(missing)}", hint="pip install 'bolt-orchestrator[cluster]'")
    if (scheme := urlsplit(serving.destination).scheme) not in ("", "file", "s3", "gs", "wasbs", "abfss", "hdfs"):
        raise UserError(f"MLflow keeps no artifacts on {scheme}://", where="--artifacts", hint="a folder, or s3://...")


def _check_port(host: str, port: int) -> None:
    """Raise ``UserError`` for a port that somebody else has; one that a killed server is leaving is waited for."""
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            with socket.socket(family) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
            return
        except socket.gaierror:
            raise UserError(f"{host} is no address of this machine", where="--host") from None
        except PermissionError:
            raise UserError(
                f"port {port} is not for ordinary users", where="--port", hint="take one above 1023"
            ) from None
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UserError(f"cannot listen on {host}:{port}: {error.strerror}", where="--host") from None
            if time.monotonic() > deadline:
                raise UserError(f"port {port} is taken", where="--port", hint=f"try --port {port + 1}") from None
            time.sleep(0.2)


def _wait_ready(serving: Serving, mlflow: Supervised) -> None:
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


class _ending_on_signals:
    """Inside, SIGTERM and SIGHUP are what Ctrl-C is."""

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @staticmethod
    def _interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt
