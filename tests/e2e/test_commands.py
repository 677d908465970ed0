"""Commands on a store with finished cells, and on a grid some of whose images are damaged."""

import re
import shutil
import signal
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from orchestrator.store import Store
from orchestrator.store.lease import grid_lease
from orchestrator.tracking.location import tracking_location
from orchestrator.tracking.tracker import Tracker
from tests.conftest import GiveDatabase
from tests.helpers import command
from tests.helpers.listening import LOOPBACK, listening
from tests.helpers.ray_nodes import free_port
from tests.helpers.waiting import TIMEOUT, wait_for
from tests.helpers.warm_process import forked


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> Path:
    """A folder whose store holds eight finished cells of the mini grid."""
    made = tmp_path_factory.mktemp("commands")
    give_database(made / "runs" / "mlflow" / "mlflow.db")
    done = command.run_local(made, "--limit", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def run_on_mini_grid(folder: Path, verb: str, *more: str, code: int = 0) -> str:
    """Run a command on the grid; return its output and its errors."""
    done = command.orchestrator(verb, str(folder / "mini.yaml"), *command.options(folder), *more)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def said(code: int, *words: str) -> str:
    """Run a command; return its output and its errors."""
    done = command.orchestrator(*words)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_status_counts_finished_cells(folder: Path) -> None:
    status = run_on_mini_grid(folder, "status")
    assert "27 cells: 8 done, 19 to do, 0 failed" in status
    assert "last run ended" in status
    every = said(0, "status", "--store", str(folder / "runs"))
    assert every.splitlines()[-1].split()[:3] == ["mini", "ended", "8/8"]
    assert "is not being run" in run_on_mini_grid(folder, "status", "--watch", code=2)


def test_report_and_sync_write_what_is_missing_from_the_results(folder: Path, give_database: GiveDatabase) -> None:
    page = folder / "runs" / "reports" / "mini" / "index.html"
    page.unlink()
    assert str(page) in run_on_mini_grid(folder, "report")
    assert "19" in page.read_text()  # the number of missing cells
    shutil.rmtree(folder / "runs" / "mlflow")
    give_database(folder / "runs" / "mlflow" / "mlflow.db")
    assert re.search(r"MLflow: \d+ runs added, 0 unchanged, 0 removed", run_on_mini_grid(folder, "sync"))
    assert "MLflow: 0 runs added" in run_on_mini_grid(folder, "sync")


def test_an_empty_store_has_no_ui_and_doctor_names_a_missing_data_root(tmp_path: Path) -> None:
    store = ("--store", str(tmp_path / "runs"))
    assert "nothing is tracked" in said(2, "ui", *store)
    assert "--data-root" in said(1, "doctor", "real", *store)
    said(0, "doctor", "smoke", *store)


def test_runs_of_other_cells_stay_in_mlflow(folder: Path) -> None:
    store = Store(folder / "runs")
    done = run_on_mini_grid(folder, "grid", "--local", "--limit", "2")
    assert "this run: 0 artifacts built, 0 trials started" in done
    assert len(store.result_ids()) == 8
    place = tracking_location(store)
    assert store.result_ids() <= Tracker(place, "mini", store.adapter_folder).existing().keys()


def is_healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_ui_serves_on_loopback_until_ctrl_c(folder: Path) -> None:
    port = free_port()
    words = ["ui", "mini", "--store", str(folder / "runs"), "--port", str(port)]
    with forked(words, log=folder / "ui.txt") as process:
        tree = psutil.Process(process.pid)
        try:
            wait_for(lambda: is_healthy(port), pause=0.5)
            found = listening(tree)
        finally:
            tree.send_signal(signal.SIGINT)
            process.join(TIMEOUT)
    output = (folder / "ui.txt").read_text()
    assert process.exitcode == 0
    assert found
    assert set().union(*found.values()) <= LOOPBACK, found
    assert f"http://127.0.0.1:{port}/#/experiments/" in output
    assert "searchFilter=" in output


def test_sigterm_ends_a_grid_in_good_order_outside_of_its_cells_too(folder: Path) -> None:
    words, log = [*command.arguments(folder), "--local", "--limit", "8"], folder / "stopped.txt"
    lease = folder / "runs" / "locks" / "mini.lease"
    assert command.signal_when(words, lease.exists, log, signal.SIGTERM) == 130
    assert "To go on, run the same command again" in log.read_text()
    assert not lease.exists()


def test_ctrl_c_ends_a_sync_that_writes_to_mlflow(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "mlflow")
    log, grid = folder / "stopped-sync.txt", str(folder / "mini.yaml")
    words = [sys.executable, "-m", "orchestrator", "sync", grid, *command.options(folder)]
    lock = folder / "runs" / "mlflow" / "mlflow.db.lock"  # of the database that is being created
    assert command.signal_when(words, lock.exists, log, signal.SIGINT) == 130
    assert "To go on, run the same command again" in log.read_text()


def test_ctrl_c_while_a_grid_syncs_ends_only_the_sync(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "mlflow")
    words, log = [*command.arguments(folder), "--local", "--limit", "8"], folder / "stopped-at-its-end.txt"
    lock = folder / "runs" / "mlflow" / "mlflow.db.lock"
    assert command.signal_when(words, lock.exists, log, signal.SIGINT) == 0
    output = log.read_text()
    assert "MLflow: stopped; the results are safe" in output
    assert "report: " in output


def test_a_second_driver_is_refused(folder: Path) -> None:
    """This process holds the lock of the grid, as a run in another shell would."""
    with grid_lease(Store(folder / "runs").files, "mini"):
        for name in ("grid", "sync"):  # sync writes to MLflow, which has one writer
            assert "is running or syncing" in run_on_mini_grid(folder, name, code=2)


def test_failures_are_recorded_and_retried_on_request(tmp_path: Path, give_database: GiveDatabase) -> None:
    """All images of one class are damaged, and later restored."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    command.options(tmp_path)  # writes the images
    whole = {path: path.read_bytes() for path in (tmp_path / "images" / "amounts").glob("*/four/*.png")}
    for path, content in whole.items():
        path.write_bytes(bytes(len(content)))  # of equal length, so the dataset's identity stays the same
    some = [f"--only={key}" for key in ("method=zero_shot,linear_probe", "dataset=amounts,shades", "seed=1")]
    first = command.run_local(tmp_path, *some)
    assert first.returncode == 1, first.stdout + first.stderr
    assert "cannot be decoded" in first.stdout
    assert len(Store(tmp_path / "runs").result_ids()) == 2  # the cells of shades
    again = command.run_local(tmp_path, *some)
    assert again.returncode == 1
    assert "0 trials started" in again.stdout
    shown = run_on_mini_grid(tmp_path, "status")
    assert "2 failed" in shown
    assert "log:" in shown
    for path, content in whole.items():
        path.write_bytes(content)
    last = command.run_local(tmp_path, *some, "--retry-failed")
    assert last.returncode == 0, last.stdout + last.stderr
    assert len(Store(tmp_path / "runs").result_ids()) == 4


def test_inspect_writes_the_page_of_a_cell(folder: Path) -> None:
    """The page of a trained BOLT cell has all its sections and refers to no network address."""
    (name,) = [path.stem for path in (folder / "runs" / "results").glob("*.bolt.*.json")]
    run_on_mini_grid(folder, "report")  # `grid --limit` has left a report without this cell
    page = Path(said(0, "inspect", name[:-4], *command.options(folder)).removeprefix("page: ").strip())
    text = page.read_text(encoding="utf-8")
    assert page.parent == folder / "runs" / "reports" / "cells"
    for words in (
        "Most confident mistakes", "All methods on the same images", "Training curves", "Confusion matrix",
        "pooled and scaled", "Overlap between the sources", "stored with",
    ):  # fmt: skip
        assert words in text
    assert "http" not in text.replace("http-equiv", "")
    assert "unknown cell" in said(2, "inspect", "nothing-like-it", "--store", str(folder / "runs"))
