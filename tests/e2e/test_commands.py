"""Commands on a store with finished cells, and on a grid some of whose images are damaged."""

import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from orchestrator.store import Store
from orchestrator.store.lease import grid_lease
from orchestrator.tracking.location import tracking_location
from orchestrator.tracking.tracker import Tracker
from tests.conftest import GiveDatabase
from tests.helpers import command
from tests.helpers.ray_nodes import free_port
from tests.helpers.waiting import TIMEOUT, wait_for


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> Path:
    """A folder whose store holds eight finished cells of the mini grid."""
    made = tmp_path_factory.mktemp("commands")
    give_database(made / "runs" / "mlflow" / "mlflow.db")
    done = command.run_local(made, "--limit", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def run_on_mini_grid(folder: Path, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
    return command.orchestrator(verb, str(folder / "mini.yaml"), *command.options(folder), *more)


def test_status_counts_finished_cells(folder: Path) -> None:
    done = run_on_mini_grid(folder, "status")
    assert done.returncode == 0, done.stderr
    assert "27 cells: 8 done, 19 to do, 0 failed" in done.stdout
    assert "last run ended" in done.stdout
    every = command.orchestrator("status", "--store", str(folder / "runs"))
    assert every.returncode == 0, every.stderr
    assert every.stdout.splitlines()[-1].split()[:3] == ["mini", "ended", "8/8"]
    over = run_on_mini_grid(folder, "status", "--watch")
    assert over.returncode == 2
    assert "is not being run" in over.stderr


def test_report_writes_a_missing_page(folder: Path) -> None:
    page = folder / "runs" / "reports" / "mini" / "index.html"
    page.unlink()
    done = run_on_mini_grid(folder, "report")
    assert done.returncode == 0, done.stderr
    assert str(page) in done.stdout
    assert "19" in page.read_text()  # the number of missing cells


def test_sync_rebuilds_mlflow_from_the_results(folder: Path) -> None:
    shutil.rmtree(folder / "runs" / "mlflow")
    done = run_on_mini_grid(folder, "sync")
    assert done.returncode == 0, done.stderr
    assert re.search(r"MLflow: \d+ runs added, 0 unchanged, 0 removed", done.stdout)
    again = run_on_mini_grid(folder, "sync")
    assert "MLflow: 0 runs added" in again.stdout


def test_runs_of_other_cells_stay_in_mlflow(folder: Path) -> None:
    store = Store(folder / "runs")
    done = run_on_mini_grid(folder, "grid", "--local", "--limit", "2")
    assert done.returncode == 0, done.stderr
    assert "this run: 0 artifacts built, 0 trials started" in done.stdout
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
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        wait_for(lambda: is_healthy(port), pause=0.5)
    finally:
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=TIMEOUT)
    assert f"http://127.0.0.1:{port}/#/experiments/" in output
    assert "searchFilter=" in output


def test_ui_of_an_empty_store_is_an_error(tmp_path: Path) -> None:
    done = command.orchestrator("ui", "--store", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "nothing is tracked" in done.stderr


def test_doctor_names_a_missing_data_root(tmp_path: Path) -> None:
    done = command.orchestrator("doctor", "real", "--store", str(tmp_path / "runs"))
    assert done.returncode == 1
    assert "--data-root" in done.stdout
    assert command.orchestrator("doctor", "smoke", "--store", str(tmp_path / "runs")).returncode == 0


def test_a_second_driver_is_refused(folder: Path) -> None:
    """This process holds the lock of the grid, as a run in another shell would."""
    with grid_lease(Store(folder / "runs").files, "mini"):
        for name in ("grid", "sync"):  # sync writes to MLflow, which has one writer
            done = run_on_mini_grid(folder, name)
            assert done.returncode == 2, name
            assert "is running or syncing" in done.stderr


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
    assert "2 failed" in shown.stdout
    assert "log:" in shown.stdout
    for path, content in whole.items():
        path.write_bytes(content)
    last = command.run_local(tmp_path, *some, "--retry-failed")
    assert last.returncode == 0, last.stdout + last.stderr
    assert len(Store(tmp_path / "runs").result_ids()) == 4


def test_inspect_writes_the_page_of_a_cell(folder: Path) -> None:
    """The page of a trained BOLT cell has all its sections and refers to no network address."""
    (name,) = [path.stem for path in (folder / "runs" / "results").glob("*.bolt.*.json")]
    run_on_mini_grid(folder, "report")  # `grid --limit` has left a report without this cell
    said = command.orchestrator("inspect", name[:-4], *command.options(folder))
    assert said.returncode == 0, said.stderr
    page = Path(said.stdout.removeprefix("page: ").strip())
    text = page.read_text(encoding="utf-8")
    assert page.parent == folder / "runs" / "reports" / "cells"
    for words in (
        "Most confident mistakes",
        "All methods on the same images",
        "Training curves",
        "../mini/index.html",
        "Confusion matrix",
        "pooled and scaled",
        "Overlap between the sources",
        "stored with",
    ):
        assert words in text
    assert "http" not in text.replace("http-equiv", "")
    wrong = command.orchestrator("inspect", "nothing-like-it", "--store", str(folder / "runs"))
    assert wrong.returncode == 2
    assert "unknown cell" in wrong.stderr
