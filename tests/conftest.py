"""What all tests need of the process they run in, and what takes long to make and is the same for all."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

GiveDatabase = Callable[[Path], None]
"""Puts an empty MLflow database at a path, with its folder."""


def pytest_configure() -> None:
    """Hear Ctrl-C, and have Ray's workers work beside the other tests.

    In the background of a script a shell has its children ignore Ctrl-C. Ray runs its workers at niceness 15, so on two
    cores they would get next to nothing of the time while tests that compute run beside them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.setdefault("RAY_worker_niceness", "0")


@pytest.fixture(scope="session")
def give_database(tmp_path_factory: pytest.TempPathFactory) -> GiveDatabase:
    """For tests in which something else than its making matters: MLflow takes seconds for it, here once a run."""
    from orchestrator.tracking.client import open_client

    base = tmp_path_factory.getbasetemp()
    blank = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "blank" / "mlflow.db"
    open_client(f"sqlite:///{blank}")  # several workers that make it at once make one

    def give(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(blank)) as source, contextlib.closing(sqlite3.connect(path)) as copy:
            source.backup(copy)

    return give
