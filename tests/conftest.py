"""Settings of the test process, and an MLflow database that tests copy instead of creating one."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

GiveDatabase = Callable[[Path], None]
"""Copies an empty MLflow database to a path, and creates its folder."""


def pytest_configure() -> None:
    """Let Ctrl-C interrupt the tests, and give Ray's workers normal priority.

    A shell script starts its background processes with Ctrl-C ignored. Ray runs its workers at niceness 15: on two
    cores they would hardly get any processor time beside tests that compute.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def give_database(tmp_path_factory: pytest.TempPathFactory) -> GiveDatabase:
    """A function that copies an empty MLflow database to a path. MLflow takes seconds to create one."""
    from orchestrator.tracking.client import open_client

    base = tmp_path_factory.getbasetemp()
    blank = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "blank" / "mlflow.db"
    open_client(f"sqlite:///{blank}")  # safe when several test processes do this at once

    def give(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(blank)) as source, contextlib.closing(sqlite3.connect(path)) as copy:
            source.backup(copy)

    return give
