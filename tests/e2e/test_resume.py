"""A killed driver loses no finished work, and the same command gives the same results as an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tests.conftest import GiveDatabase
from tests.helpers import command


def manifests(store: Path, kind: str) -> int:
    """The number of finished artifacts of a kind."""
    return len(list((store / kind).glob("*/manifest.json")))


def results(store: Path) -> int:
    return len(list((store / "results").glob("*.json")))


def kill_points(store: Path) -> dict[str, Callable[[], bool]]:
    """Name -> whether the run has reached that moment, in order. ``make soak`` kills at hundreds of random moments."""
    return {
        "half of the features built": lambda: manifests(store, "features") >= 7,
        "a source being fine-tuned": lambda: any((store / "sources").glob("*/*/")) and not manifests(store, "sources"),
        "MLflow's database being made": lambda: any((store / "mlflow").glob(".mlflow.db.part*")),
        "half the results": lambda: results(store) >= command.CELLS // 2,
        "the report being written": lambda: any((store / "reports").glob("mini/.building-*")),
    }


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> dict[str, object]:
    """The scores of an uninterrupted run in one process without Ray."""
    folder = tmp_path_factory.mktemp("reference")
    give_database(folder / "runs" / "mlflow" / "mlflow.db")
    done = command.run_local(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return command.scores(folder / "runs")


def finished_runs(store: Path) -> list[str]:
    """Cell ids of the cell runs in MLflow, one entry per run. Checks that all of them are finished."""
    client = MlflowClient(f"sqlite:///{store}/mlflow/mlflow.db")
    ids = [experiment.experiment_id for experiment in client.search_experiments()]
    runs = client.search_runs(ids, "tags.kind = 'cell'", max_results=1000)
    assert {run.info.status for run in runs} == {"FINISHED"}
    return sorted(run.data.tags["run_key"] for run in runs)


def test_a_killed_driver_loses_nothing_and_repeats_nothing(tmp_path: Path, reference: dict[str, object]) -> None:
    store, log = tmp_path / "runs", tmp_path / "log.txt"
    killed = [
        point
        for point, reached in kill_points(store).items()
        if command.kill_when(command.arguments(tmp_path), reached, log)
    ]
    assert len(killed) >= 3, f"only {killed} were reached in time"
    done = command.run(command.arguments(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(reference) == command.CELLS
    assert command.scores(store) == reference
    assert finished_runs(store) == sorted(reference)
    assert (store / "reports" / "mini" / "index.html").is_file()

    again = command.run(command.arguments(tmp_path))
    assert again.returncode == 0
    assert "0 to do" in again.stdout
    assert "0 trials" in again.stdout
    assert finished_runs(store) == sorted(reference)
