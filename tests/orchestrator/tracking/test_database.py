"""Opening, creating and repairing SQLite tracking databases, by several processes at once."""

import contextlib
import fcntl
import os
import shutil
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.store import Store
from orchestrator.tracking.client import move_aside, open_client, open_experiment
from orchestrator.tracking.errors import classify_tracking_error
from orchestrator.tracking.location import URI_VARIABLE, TrackingLocation, tracking_location
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers.waiting import at_once, wait_for
from tests.helpers.warm_process import forked, run_forked
from tests.orchestrator.tracking.examples import GRID, SUMMARIES, describe, some_results

OPENING = """
import sys
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.tracker import Tracker
print(Tracker(TrackingLocation(*sys.argv[1:]), "demo").experiment_id)
"""


@pytest.mark.slow
def test_processes_that_open_a_missing_database_at_once_share_one(tmp_path: Path) -> None:
    arguments = [f"sqlite:///{tmp_path}/new/mlflow.db", (tmp_path / "artifacts").as_uri()]
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: run_forked(arguments, OPENING), range(2)))
    assert [process.returncode for process in done] == [0, 0], done
    assert {process.stdout for process in done} == {"1\n"}
    assert [process.stderr for process in done] == ["", ""]


@pytest.mark.slow
@pytest.mark.parametrize("left", ["nothing", "an experiment", "a deleted experiment"])
def test_clients_that_open_an_experiment_at_once_share_one(sqlite_store: tuple[str, str], left: str) -> None:
    """Regression: one of two first sessions at once failed, as both set the same tag; CI met it once."""
    clients = [open_client(sqlite_store[0]) for _ in range(4)]
    for experiment in ("a", "b", "c", "d", "e"):
        if left != "nothing":
            made = clients[0].create_experiment(experiment)
            if left == "a deleted experiment":
                clients[0].delete_experiment(made)
        ids = at_once(4, lambda number: open_experiment(clients[number], experiment, None))  # noqa: B023
        assert len(set(ids)) == 1
        there = clients[0].get_experiment(ids[0])
        assert there.lifecycle_stage == "active"


@pytest.mark.parametrize("artifacts", ["with artifacts", "before its first artifact"])
@pytest.mark.parametrize("way", ["copied", "moved"])
def test_a_copied_or_moved_store_has_its_own_artifacts(
    tracker: Tracker, tmp_path: Path, artifacts: str, way: str
) -> None:
    """MLflow stores absolute addresses, so a copied store once wrote into the store that it was copied from."""
    results, copy = some_results()[:2], tmp_path / "copy" / "mlflow"
    tracker.log_result(results[0], describe(results[0]))
    if artifacts == "with artifacts":
        (tmp_path / "mlflow" / "artifacts").mkdir()
    shutil.copytree(tmp_path / "mlflow", copy)
    if way == "moved":
        shutil.rmtree(tmp_path / "mlflow")
    root = (copy / "artifacts").as_uri()
    copied = Tracker(TrackingLocation(f"sqlite:///{copy}/mlflow.db", root), GRID)
    copied.log_result(results[1], describe(results[1]))
    assert [run.info.artifact_uri.startswith(f"{root}/{GRID}/") for run in copied._search("")] == [True, True]
    if way == "copied":
        assert not any(run.info.artifact_uri.startswith(root) for run in tracker._search(""))


@pytest.mark.parametrize(
    "chosen", ["file://{folder}/artifacts", "file://{folder}/not-mounted/artifacts", "s3://bucket/artifacts"]
)
def test_a_place_that_the_user_chose_for_artifacts_stays(tmp_path: Path, tracker: Tracker, chosen: str) -> None:
    (tmp_path / "chosen").mkdir()
    root, experiment = chosen.format(folder=tmp_path / "chosen"), "other"
    open_experiment(tracker._client, experiment, root)
    uri = f"sqlite:///{tmp_path}/mlflow/mlflow.db"
    again = Tracker(TrackingLocation(uri, (tmp_path / "mlflow" / "artifacts").as_uri()), experiment)
    assert again._client.get_experiment(again.experiment_id).artifact_location == f"{root}/{experiment}"


@pytest.mark.slow
def test_a_process_killed_while_it_creates_the_database_once_left_it_broken_for_good(tmp_path: Path) -> None:
    uri, artifacts = f"sqlite:///{tmp_path}/mlflow.db", (tmp_path / "artifacts").as_uri()
    with forked([uri, artifacts], OPENING) as creator:
        wait_for(lambda: bool(list(tmp_path.glob(".mlflow.db.part*"))))
        (left,) = psutil.Process(creator.pid).children()  # it makes the database, and is not killed with the creator
        left.suspend()
        creator.kill()
    assert not (tmp_path / "mlflow.db").exists()
    with open(tmp_path / "mlflow.db.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # once two wrote under the passing name then
    left.resume()
    results = some_results()
    done = Tracker(TrackingLocation(uri, artifacts), GRID).sync(results, describe)
    assert done == SyncReport(len(results) + SUMMARIES, 0, 0)


@pytest.mark.parametrize("version", ["cc1f77228345", "ffffffffffff"], ids=["older", "newer"])
def test_other_versions_are_named(
    version: str, sqlite_store: tuple[str, str], tracker: Tracker, tmp_path: Path
) -> None:
    tracker.sync(some_results()[:1], describe)
    path = tmp_path / "other.db"  # MLflow looks at a database once
    with contextlib.closing(sqlite3.connect(sqlite_store[0].removeprefix("sqlite:///"))) as connection:
        connection.execute("vacuum into ?", (str(path),))
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update alembic_version set version_num = ?", (version,))
    with pytest.raises(Exception, match=r"schema|locate revision") as found:
        open_client(f"sqlite:///{path}").search_experiments()
    problem = classify_tracking_error(found.value)
    assert problem.kind == "refused"
    assert "sync GRID --rebuild" in problem.message
    assert "mlflow db upgrade" in problem.message


@pytest.mark.parametrize("damage", ["not a database", "torn", "emptied"])
def test_a_damaged_database_is_said_and_made_anew(damage: str, sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    results = some_results()[:3]
    tracker.sync(results, describe)
    path = Path(sqlite_store[0].removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    size = path.stat().st_size
    if damage == "emptied":
        os.truncate(path, size := 0)
    else:
        with open(path, "r+b") as stream:
            stream.seek(0 if damage == "not a database" else 100)
            stream.write(b"\xff" * (size - 200 if damage == "torn" else 4096))
    with pytest.raises(sqlite3.DatabaseError) as found:
        open_client(sqlite_store[0])
    assert "sync GRID --rebuild" in classify_tracking_error(found.value).message
    assert classify_tracking_error(found.value).kind == "refused"
    aside = move_aside(path)
    assert aside.stat().st_size == size
    assert not path.exists()


@pytest.mark.parametrize("password", ["secret", "se/cret"])
def test_the_error_for_an_unknown_kind_of_address_hides_the_password(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(URI_VARIABLE, f"mysql://me:{password}@host/runs")
    with pytest.raises(UserError, match=r"mysql://\.\.\.@host/runs is not"):
        tracking_location(Store(str(tmp_path)))


@pytest.mark.parametrize("name", ["a?b", "a%41"])
def test_a_database_that_mlflow_would_seek_elsewhere_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the database of the store ``a?b`` was the file ``a``; that of ``a%41`` was waited for in vain."""
    monkeypatch.delenv(URI_VARIABLE, raising=False)
    with pytest.raises(UserError, match=URI_VARIABLE):
        tracking_location(Store(f"{tmp_path}/{name}"))
    for good in ("100%", "a#b", "ä b", "a::b"):
        database = tracking_location(Store(f"{tmp_path}/{good}")).database
        assert database == tmp_path / good / "mlflow" / "mlflow.db"


def test_the_database_of_an_address_is_the_one_that_mlflow_opens(tmp_path: Path, give_database: GiveDatabase) -> None:
    """MLflow reads codes in the name, and takes what follows ``?`` for options."""
    give_database(tmp_path / "aA.db")
    open_client(f"sqlite:///{tmp_path}/a%41.db?timeout=9").search_experiments()
    assert {path.name for path in tmp_path.glob("*.db")} == {"aA.db"}


def test_the_database_of_another_project_is_not_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``MLFLOW_TRACKING_URI`` may name a database that holds the runs of others."""
    theirs = tmp_path / "theirs.db"
    theirs.write_bytes(b"theirs")
    monkeypatch.setenv(URI_VARIABLE, f"sqlite:///{theirs}")
    done = CliRunner().invoke(app, ["sync", "smoke", "--rebuild", "--store", str(tmp_path / "store")])
    assert "runs of other stores" in str(done.exception)
    assert [path.name for path in tmp_path.glob("theirs*")] == ["theirs.db"]
