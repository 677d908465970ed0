"""Settings of the test process, and an MLflow database that tests copy instead of creating one."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.helpers.built_artifacts import BuiltArtifacts

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before PyTorch is imported: each core has a test process
GiveDatabase = Callable[[Path], None]
"""Copies an empty MLflow database to a path, and creates its folder."""
FOLDER_MARKS = {"e2e": "e2e", "faults": "ray", "fuzz": "fuzz"}
"""Folder of ``tests/`` -> the mark of every test in it."""
WITHOUT_PYTORCH = ("mlflow", "ray.tune", "sklearn.linear_model", "matplotlib.figure")
"""Packages that every second process imports before PyTorch. Python compiles a fresh installation as it is imported, so
two processes in the same order would compile all of it twice."""
SLOW_MARKS = ("ray", "server", "e2e", "slow")
SLOW_FIXTURES = frozenset({"artifacts", "give_database"})
"""Fixtures that take seconds to make; the tests that use one are marked ``slow``."""


def pytest_configure() -> None:
    """Let signals end the tests' processes, give Ray's workers normal priority, and hypothesis no time limit.

    A shell script starts its background processes with Ctrl-C ignored, and ``nohup`` with SIGHUP ignored. What they
    start inherits that, and a test that waits for its end would wait for ever. Ray runs its workers at niceness 15:
    on two cores they would hardly get any processor time beside tests that compute. Hypothesis fails a test if one
    example takes more than 200 ms, and an example can take longer while another test computes.
    """
    hypothesis.settings.register_profile("suite", deadline=None)
    hypothesis.settings.load_profile("suite")
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    os.environ.setdefault("RAY_worker_niceness", "0")
    if os.environ.get("PYTEST_XDIST_WORKER", "")[-1:] in tuple("13"):
        for name in WITHOUT_PYTORCH:
            import_module(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of some folders and those with a slow fixture, and put the files with slow tests first.

    ``--dist loadscope`` gives whole files to processes, in this order. If a file of several minutes started last, the
    other process would have no work meanwhile.
    """
    slow_files = set()
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder in FOLDER_MARKS:
            item.add_marker(FOLDER_MARKS[folder])
        if SLOW_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("slow")
        if any(item.get_closest_marker(mark) for mark in SLOW_MARKS):
            slow_files.add(item.path)
    items.sort(key=lambda item: item.path not in slow_files)


def pytest_runtest_setup() -> None:
    """Let PyTorch compute on one thread again. ``adapt`` takes all threads, and a test may run it in this process.

    On two cores with other work, small steps take up to 60 times as long on two threads as on one.
    """
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for temporary files of all processes of this test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def artifacts(run_folder: Path) -> BuiltArtifacts:
    """The artifacts that tests share; they are built on the CPU."""
    from tests.helpers.built_artifacts import BuiltArtifacts

    return BuiltArtifacts(run_folder / "artifacts")


@pytest.fixture(scope="session")
def give_database(run_folder: Path) -> GiveDatabase:
    """A function that copies an empty MLflow database to a path. MLflow takes seconds to create one."""
    from orchestrator.tracking.client import open_client

    blank = run_folder / "blank" / "mlflow.db"
    open_client(f"sqlite:///{blank}")  # safe when several test processes do this at once

    def give(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(blank)) as source, contextlib.closing(sqlite3.connect(path)) as copy:
            source.backup(copy)

    return give
