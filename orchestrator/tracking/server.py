"""The tracking server of a cluster's head: PostgreSQL, and MLflow on it behind basic auth, in one folder.

Everything it keeps is in the folder: the database, the artifacts unless they go elsewhere, the secrets in files of
mode 0600, the logs. Users and their permissions are MLflow's own and lie in the same database.
"""

from __future__ import annotations

import errno
import shlex
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from urllib.parse import urlsplit

from orchestrator.tracking.database import check_database, find_postgres, with_driver, write_secret
from orchestrator.tracking.mlflow_server import ADMIN, ADMIN_PASSWORD, Serving, is_loopback, mlflow_server, wait_ready
from orchestrator.util.errors import UserError
from orchestrator.util.locks import LockHeld, file_lock

ARTIFACTS_VARIABLE = "BOLT_TRACKING_ARTIFACTS"
SERVER_VARIABLE = "BOLT_TRACKING_SERVER"

_LOCK = "serving.lock"
_DRIVER_ENVIRONMENT = "driver.env"

_PORT_SECONDS = 2.0
_LOOK_SECONDS = 0.2


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
            stack.enter_context(file_lock(serving.folder / _LOCK))
        except LockHeld as process:
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
        mlflow = mlflow_server(serving, uri, passwords)
        stack.callback(mlflow.stop)
        mlflow.start()
        wait_ready(serving, mlflow)
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
    password = shlex.quote(str(folder / ADMIN_PASSWORD))
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
        lines.append(f"  user {ADMIN}, password in {serving.folder / ADMIN_PASSWORD}")
    if is_loopback(serving.host):
        lines.append(f"  from your own machine: ssh -L {serving.port}:127.0.0.1:{serving.port} THIS-MACHINE")
    else:
        lines.append("  passwords travel unencrypted: in a network of others, leave --host out and use `ssh -L`")
    lines.append(f'  drivers on this machine: eval "$(python -m orchestrator tracking env --folder {folder})"')
    return lines


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
