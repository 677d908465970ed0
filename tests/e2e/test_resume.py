"""A stopped or killed driver loses no finished work, and the same command ends with the same results."""

import shlex
import signal
import subprocess
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.conftest import GiveDatabase
from tests.helpers import command
from tests.helpers.image_folders import DATASETS
from tests.helpers.waiting import TIMEOUT, wait_for

GRID = command.GRID.replace("seeds: [1, 2]", "seeds: [1]")
CELLS = len(DATASETS) * (1 + 4)


def manifests(store: Path, kind: str) -> int:
    """Return the number of finished artifacts of a kind."""
    return len(list((store / kind).glob("*/manifest.json")))


def results(store: Path) -> int:
    return len(list((store / "results").glob("*.json")))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> dict[str, object]:
    """The scores of an uninterrupted run in one process without Ray."""
    folder = tmp_path_factory.mktemp("reference")
    give_database(folder / "runs" / "mlflow" / "mlflow.db")
    (folder / "mini.yaml").write_text(GRID)
    done = command.run_local(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return command.scores(folder / "runs")


def finished_runs(store: Path) -> list[str]:
    """Return the cell id of each run of a cell in MLflow, after checking that all runs are finished."""
    client = MlflowClient(f"sqlite:///{store}/mlflow/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, "tags.kind = 'cell'", max_results=1000)
    assert {run.info.status for run in runs} == {"FINISHED"}
    return sorted(run.data.tags["run_key"] for run in runs)


def test_a_killed_driver_loses_and_repeats_nothing(tmp_path: Path, reference: dict[str, object]) -> None:
    """Five moments in the order of a run, each in a command of its own; ``make soak`` kills at hundreds of moments.

    The first command is on Ray. The others are in one process, whose death leaves the same files behind.
    ``tests/faults`` kills a driver whose cells run on Ray.
    """
    (tmp_path / "mini.yaml").write_text(GRID)
    store, words = tmp_path / "runs", command.arguments(tmp_path)

    def source_attempts() -> set[Path]:
        return set((store / "sources").glob("*/*/"))

    def source_begun() -> bool:
        return bool(source_attempts() - interrupted) or results(store) > 0

    def database_begun() -> bool:
        return any((store / "mlflow").glob(".mlflow.db.part*")) or results(store) > 0

    log = tmp_path / "stopped.txt"
    with open(log, "wb") as stream:  # no fork of the warm process: Ray's end and the interpreter's end are one test
        driver = subprocess.Popen(words, stdout=stream, stderr=stream)
    try:
        wait_for(lambda: manifests(store, "features") >= 2 or driver.poll() is not None)
        driver.send_signal(signal.SIGINT)
        code, output = driver.wait(TIMEOUT), log.read_text()
    finally:
        driver.kill()
    assert code == 130, output
    assert f"continue with: python -m {shlex.join(words[2:])}" in output
    # Ray once aborted the driver with a stack trace when running tasks were cancelled by force.
    assert "StackTrace" not in output
    assert "Traceback" not in output
    interrupted = source_attempts()
    killed = [
        command.kill_local_when(tmp_path, source_begun),
        command.kill_local_when(tmp_path, database_begun),
        command.kill_local_when(tmp_path, lambda: results(store) >= CELLS // 2),
        command.kill_local_when(tmp_path, lambda: any((store / "reports").glob("mini/.building-*"))),
    ]
    assert sum(killed) >= 3, f"only {killed} were reached in time"
    done = command.run_local(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(reference) == CELLS
    assert command.scores(store) == reference
    assert finished_runs(store) == sorted(reference)
    assert (store / "reports" / "mini" / "index.html").is_file()
    again = command.orchestrator(*words[3:])
    assert again.returncode == 0
    assert "0 to do" in again.stdout
    assert "0 trials" in again.stdout
    assert finished_runs(store) == sorted(reference)
