"""Connects to MLflow on SQLite, PostgreSQL or a tracking server, and opens an experiment.

A missing database or experiment is created. Several processes may do so at once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from orchestrator.tracking.location import POSTGRES_DRIVER, SQLITE, database_file, database_uri
from orchestrator.util.errors import one_line
from orchestrator.util.locks import file_lock

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PROXY_SCHEME = "mlflow-artifacts"
"""The URL scheme of artifacts that a tracking server stores for its clients."""

_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Tags of a new experiment. They make MLflow's web interface open on the table of runs."""

_ADDRESSES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
)
"""The tables and columns of MLflow's database that hold addresses of artifacts."""

_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",  # the errors that MLflow logs are raised too, and this project reports them
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",  # the sync tries again itself; MLflow would take minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "6",
    "PGCONNECT_TIMEOUT": "10",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


def open_client(uri: str) -> MlflowClient:
    """Return a connected client. A missing SQLite database is created first.

    MLflow creates a SQLite database in many steps. If two processes do so at once, or if the process is killed, the
    database stays broken. Therefore it is created under a temporary name, behind a lock, and renamed when complete.

    Raises the error of MLflow or of the database, within seconds. MLflow alone would try a broken database for 100 s.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    _silence_loggers()
    from mlflow.tracking import MlflowClient

    _silence_loggers()  # once more, because importing MLflow sets the levels of these loggers
    if uri.startswith(SQLITE):
        database = database_file(uri)
        _use_write_ahead_log()
        with file_lock(Path(f"{database}.lock"), wait=True) as lock:
            _create_database(database, lock)
        with contextlib.closing(sqlite3.connect(database)) as connection:  # raises if the file is no database
            connection.execute("SELECT count(*) FROM experiments").close()
    if uri.startswith(POSTGRES_DRIVER):
        import psycopg2

        psycopg2.connect(uri.replace(POSTGRES_DRIVER, "postgresql", 1)).close()  # raises if the server does not answer
    client = MlflowClient(tracking_uri=uri)
    client.search_experiments(max_results=1)
    return client


def _silence_loggers() -> None:
    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _create_database(path: Path, lock: int) -> None:
    """Create an empty tracking database unless the file exists. Raises ``OSError`` if MLflow cannot create it.

    A child process creates the database, so that this process keeps no connection to the temporary name. The child
    inherits the file descriptor of the lock. So if only this process is killed, the next one waits for the child.
    """
    if path.exists():
        return
    for leftover in path.parent.glob(f".{path.name}.part*"):  # left by processes that were killed
        leftover.unlink()
    part = path.with_name(f".{path.name}.part")
    script = "import sys, mlflow; mlflow.MlflowClient(sys.argv[1]).search_experiments(max_results=1)"
    command = [sys.executable, "-c", script, database_uri(part)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, pass_fds=[lock])
    if done.returncode:
        raise OSError(f"MLflow cannot create {path}: {one_line(done.stderr[-300:])}")
    os.replace(part, path)


@functools.cache
def _use_write_ahead_log() -> None:
    """Switch SQLite connections to write-ahead logging, so that the six commits of a run sync the disk less often.

    A power cut can lose the last few runs. ``sync`` then writes them again.
    """
    from sqlalchemy import Engine, event

    def prepare(connection: Any, record: Any) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("PRAGMA journal_mode=WAL").close()
            connection.execute("PRAGMA synchronous=NORMAL").close()

    event.listen(Engine, "connect", prepare)


def move_aside(path: Path) -> Path | None:
    """Rename a SQLite database, so that the next client creates a new one.

    Returns the new path, or ``None`` if there was no database.
    """
    if not path.exists():
        return None
    with file_lock(Path(f"{path}.lock"), wait=True):
        aside = path.with_name(f"{path.name}.{time.strftime('%Y%m%d-%H%M%S')}.old")
        os.replace(path, aside)
        for suffix in ("-wal", "-shm", "-journal"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
    return aside


def open_experiment(client: MlflowClient, name: str, artifact_root: str | None) -> str:
    """Return the id of the active experiment called ``name``. It is created, or restored if it was deleted.

    A new experiment keeps its artifacts below the folder or URL ``artifact_root``; with ``None``, the tracking server
    chooses where. Raises the errors of MLflow, except when another process has created or restored the experiment.
    """
    if (found := client.get_experiment_by_name(name)) is None:
        location = None if artifact_root is None else f"{artifact_root}/{name}"
        with _ignoring_errors_if(lambda: client.get_experiment_by_name(name) is not None):
            client.create_experiment(name, artifact_location=location, tags=_TAGS)
        found = client.get_experiment_by_name(name)
        assert found is not None
    experiment_id: str = found.experiment_id
    if found.lifecycle_stage == "deleted":
        with _ignoring_errors_if(lambda: client.get_experiment(experiment_id).lifecycle_stage == "active"):
            client.restore_experiment(experiment_id)
    return experiment_id


def follow_artifacts(database: Path, experiment: str, root: str) -> None:
    """Correct the addresses of artifacts in a SQLite database that was moved or copied with its artifacts.

    MLflow stores absolute addresses, which begin with ``OLD/artifacts``. So a copied store would write new artifacts
    into the store that it was copied from. ``root``: the new beginning, the folder ``artifacts`` beside the database.

    Addresses stay if ``OLD`` exists and has no copy of the database: the user chose that place. They also stay if
    ``root`` does not exist and the folder of the database has another name than ``OLD``.
    """
    with contextlib.closing(sqlite3.connect(database)) as connection, connection:
        query = "SELECT artifact_location FROM experiments WHERE name = ?"
        before = connection.execute(query, [experiment]).fetchone()[0].removesuffix(f"/{experiment}")
        if before == root or not (before.startswith("file:") and before.endswith("/artifacts")):
            return
        old = Path(url2pathname(urlsplit(before).path)).parent
        left = not old.is_dir() or (old / database.name).is_file()
        if not left or not ((database.parent / "artifacts").is_dir() or old.name == database.parent.name):
            return
        for table, column in _ADDRESSES:
            change = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"
            connection.execute(change, [root, len(before) + 1, len(before) + 1, f"{before}/"])


@contextlib.contextmanager
def _ignoring_errors_if(done: Callable[[], bool]) -> Iterator[None]:
    """Ignore an error of MLflow in the block if ``done()`` is true afterwards.

    MLflow does not check and write in one transaction. So if two processes do the same at once, one gets an error.
    """
    from mlflow.exceptions import MlflowException

    try:
        yield
    except MlflowException:
        if not done():
            raise


def attach_folder(client: MlflowClient, info: Any, folder: Path, name: str, destination: str | None) -> None:
    """Store a small folder as artifacts of a run, in a folder called ``name``, without hidden files and folders.

    Killed processes leave unfinished files under hidden names.

    If the artifacts are on this machine, the folder is copied, because MLflow's own call takes 30 ms.

    Args:
        info: the run, as MLflow describes it.
        destination: URL of the folder in which a tracking server keeps artifacts. A process that uses the server's
            database directly needs it, because that process writes the files into the folder itself. With ``None``,
            MLflow's client sends the files to the server.
    """
    uri = str(info.artifact_uri)
    if destination is not None and uri.startswith(f"{PROXY_SCHEME}:"):
        uri = f"{destination}/{urlsplit(uri).path.lstrip('/')}"
    target = urlsplit(uri)
    on_disk = Path(url2pathname(target.path), name) if target.scheme == "file" else None
    with tempfile.TemporaryDirectory(prefix="bolt-") if on_disk is None else contextlib.nullcontext(on_disk) as copy:
        hidden = shutil.ignore_patterns(".*")
        shutil.copytree(folder, copy, ignore=hidden, copy_function=shutil.copyfile, dirs_exist_ok=True)
        if on_disk is None and uri != info.artifact_uri:
            from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

            get_artifact_repository(uri).log_artifacts(str(copy), name)
        elif on_disk is None:
            client.log_artifacts(info.run_id, str(copy), name)
