"""An MLflow client on any store: SQLite in a folder, PostgreSQL, a server. A missing SQLite database is made."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.tracking.database import DRIVER, with_driver
from orchestrator.util.errors import one_line

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PROXIED = "mlflow-artifacts"
"""The scheme of artifacts that a tracking server passes on to where they are kept."""

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # what goes wrong is raised as well, and said once
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # an unreachable server costs seconds, not minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "PGCONNECT_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def open_client(uri: str) -> MlflowClient:
    """A client, with the database there. Raises what MLflow raises, and that soon.

    MLflow creates a missing SQLite database in many steps; two processes that do so at once, or one that is killed
    meanwhile, leave it broken for good. So it is made under another name, behind a lock, and moved into place whole.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    from mlflow.tracking import MlflowClient

    for name in ("mlflow", "alembic"):  # importing it has set them anew
        logging.getLogger(name).setLevel(logging.CRITICAL)
    database = uri.removeprefix("sqlite:///")
    if database != uri:
        _quicken_sqlite()
        with _locked(Path(f"{database}.lock")) as lock:
            _create_database(Path(database), lock)
        _look_at_sqlite(Path(database))
    uri = with_driver(uri)
    if uri.startswith(DRIVER):
        _look_at_postgres(uri)
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client


def _create_database(path: Path, lock: int) -> None:
    """Make an empty tracking database unless there is one. Raises ``OSError`` when MLflow cannot.

    In a process of its own, so that no connection to the passing name is left open in this one. It keeps the lock, too:
    where only this process is killed, the next waits until nobody writes to that name any more.

    Args:
        lock: descriptor of the lock's file.
    """
    if path.exists():
        return
    for left in path.parent.glob(f".{path.name}.part*"):  # of processes that were killed
        left.unlink()
    part = path.with_name(f".{path.name}.part")
    script = (
        "import sys; from mlflow.tracking import MlflowClient as C; C(sys.argv[1]).search_experiments(max_results=1)"
    )
    command = [sys.executable, "-c", script, f"sqlite:///{part}"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=[lock])
    if done.returncode:
        raise OSError(f"MLflow cannot create {path}: {one_line(done.stderr[-300:])}")
    os.replace(part, path)


def _look_at_sqlite(path: Path) -> None:
    """Raise ``sqlite3.Error`` for a file that is no database: MLflow itself would try for 100 seconds."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM experiments").close()


def _look_at_postgres(uri: str) -> None:
    """Raise ``psycopg2.OperationalError`` for a server that is away: MLflow itself would try for 100 seconds."""
    import psycopg2

    psycopg2.connect(uri.replace(f"{DRIVER}:", "postgresql:", 1)).close()


@functools.cache
def _quicken_sqlite() -> None:
    """Have SQLite write ahead instead of syncing the disk several times for each of the six commits of a run.

    A power cut can then cost the last few runs, which ``sync`` brings back, and nothing else.
    """
    from sqlalchemy import Engine, event

    def prepare(connection: Any, record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("PRAGMA synchronous=NORMAL").close()

    event.listen(Engine, "connect", prepare)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Hold the lock for the block, and as long as a child lives that was given its descriptor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield stream.fileno()


def move_aside(path: Path) -> Path | None:
    """Take a SQLite database out of the way, so that the next to open it makes a new one; where it is now."""
    if not path.exists():
        return None
    with _locked(Path(f"{path}.lock")):
        aside = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.old")
        os.replace(path, aside)
        for suffix in ("-wal", "-shm", "-journal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    return aside


def attach(client: MlflowClient, info: Any, folder: Path, name: str, destination: str | None) -> None:
    """Attach a small folder to a run. On this machine's disk it is copied: MLflow's own way there takes 30 ms.

    Args:
        info: the run's.
        destination: where the server keeps the artifacts that it passes on; a driver beside it, which writes straight
            into its database, writes there as well. ``None`` has the server do it.
    """
    uri = str(info.artifact_uri)
    if destination is not None and uri.startswith(f"{PROXIED}:"):
        uri = f"{as_url(destination)}/{urlsplit(uri).path.lstrip('/')}"
    place = urlsplit(uri)
    if place.scheme == "file":
        target = Path(url2pathname(place.path), name)
        shutil.copytree(folder, target, copy_function=shutil.copyfile, dirs_exist_ok=True)
    elif uri != info.artifact_uri:
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        get_artifact_repository(uri).log_artifacts(str(folder), name)
    else:
        client.log_artifacts(info.run_id, str(folder), name)


def as_url(root: str) -> str:
    """A folder's or a URL's address, without a slash at its end."""
    return root.rstrip("/") if "://" in root else Path(root).absolute().as_uri()
