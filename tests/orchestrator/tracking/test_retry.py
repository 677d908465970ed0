"""Writing to MLflow in the background, and retrying a sync, when the store is slow or unreachable."""

import io
import re
import socket
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import mlflow
import pytest
from rich.console import Console

from orchestrator.store.results import Result
from orchestrator.tracking import retry
from orchestrator.tracking.client import open_client
from orchestrator.tracking.errors import NoAnswer, classify_tracking_error
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.retry import retry_sync
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import SyncReport, Tracker
from tests.helpers.file_server import serve
from tests.helpers.ray_nodes import free_port
from tests.helpers.waiting import TIMEOUT, wait_for
from tests.orchestrator.tracking.examples import GRID, SUMMARIES, describe, in_background, some_results


@pytest.mark.slow
def test_the_writer_in_the_background_writes_everything(sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    results = some_results()
    with in_background(lambda: Tracker(TrackingLocation(*sqlite_store), GRID), results) as writer:
        for result in results:
            writer.put(result.cell.id)
        assert writer.close() == ""
    assert tracker.sync(results, describe) == SyncReport(SUMMARIES, len(results), 0)


def test_a_tracking_store_that_is_away_is_said_once_and_repaired_later(tracker: Tracker) -> None:
    def away() -> Tracker:
        raise ConnectionError("nobody answers")

    results, said = some_results()[:5], list[str]()
    writer = in_background(away, results, say=said.append, pauses=(0.01, 0.02))
    for result in results:
        writer.put(result.cell.id)
    wait_for(lambda: bool(said))
    problem = writer.close()
    assert problem.startswith("5 runs")
    assert len(said) == 1
    assert all("nobody answers" in line for line in (problem, *said))
    assert tracker.sync(results, describe).added == 5 + 2 + 1 + 1


def test_a_run_that_was_not_begun_in_time_is_left_to_sync(tracker: Tracker) -> None:
    """Once the thread and the sync wrote it, and MLflow had it twice."""
    results, answered = some_results()[:3], threading.Event()

    def slow() -> Tracker:
        answered.wait(TIMEOUT)
        return tracker

    writer = in_background(slow, results)
    for result in results:
        writer.put(result.cell.id)
    assert writer.close(0.1) == "3 runs were not tracked in time"
    answered.set()
    writer._thread.join(TIMEOUT)
    assert tracker.existing() == {}


def test_a_run_that_is_written_a_moment_late_is_not_told(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    results, writing, write = some_results()[:1], threading.Event(), tracker.log_result

    def slowly(result: Result, labels: Labels) -> None:
        writing.set()
        writer._given_up.wait(TIMEOUT)
        write(result, labels)

    monkeypatch.setattr(tracker, "log_result", slowly)
    writer = in_background(lambda: tracker, results)
    writer.put(results[0].cell.id)
    wait_for(writing.is_set)
    assert writer.close(2.0) == ""
    assert len(tracker.existing()) == 1


QUICK: dict[str, Any] = {"total": 3.0, "pauses": (0.02, 0.05), "silence": 60.0}
"""Fractions of a second for what takes minutes."""


Tell = Callable[[int, int], None]
SILENT = Console(quiet=True)


def test_sync_waits_for_a_store_that_is_away_and_not_for_what_will_not_pass() -> None:
    tries: list[int] = []

    def attempt(tell: Tell) -> SyncReport:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionRefusedError("nobody there")
        if len(tries) > 4:
            raise sqlite3.DatabaseError("file is not a database")
        return SyncReport(1, 2, 3)

    assert retry_sync(attempt, SILENT, **QUICK) == SyncReport(1, 2, 3)
    assert len(tries) == 4
    with pytest.raises(sqlite3.DatabaseError):
        retry_sync(attempt, SILENT, **QUICK)
    assert len(tries) == 5


@pytest.mark.slow
def test_sync_gives_up_a_store_that_stays_away_but_not_one_that_gets_on() -> None:
    def away(tell: Tell) -> SyncReport:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ConnectionRefusedError):
        retry_sync(away, SILENT, **{**QUICK, "total": 0.3})
    got = 0

    def slow(tell: Tell) -> SyncReport:  # falls over after each run, for longer than `total`
        nonlocal got
        got += 1
        tell(got, 30)
        if got == 30:
            return SyncReport(30, 0, 0)
        time.sleep(0.05)
        raise ConnectionResetError("again")

    assert retry_sync(slow, SILENT, **{**QUICK, "total": 1.0}) == SyncReport(30, 0, 0)


def test_a_store_that_never_answers_does_not_hold_sync_for_ever() -> None:
    answer = threading.Event()

    def frozen(tell: Tell) -> SyncReport:
        answer.wait(TIMEOUT)
        return SyncReport(0, 0, 0)

    with pytest.raises(NoAnswer, match="no answer for"):
        retry_sync(frozen, SILENT, **{**QUICK, "total": 0.1, "silence": 0.2})
    answer.set()


def test_sync_gives_up_a_store_that_lists_its_runs_but_takes_none() -> None:
    tries: list[int] = []

    def locked(tell: Tell) -> SyncReport:
        tries.append(1)
        assert len(tries) < 20, "tried for ever"
        tell(0, 0)
        for kept in range(4):
            tell(kept, 5)
        raise sqlite3.OperationalError("database is locked")

    with pytest.raises(sqlite3.OperationalError):
        retry_sync(locked, SILENT, **{**QUICK, "total": 0.3})
    assert len(tries) > 1


@pytest.mark.slow
def test_a_dead_server_costs_a_sync_seconds() -> None:
    """With the waiting times of the product: a connection is refused, or nothing is answered."""

    def seconds(port: int) -> float:
        def attempt(tell: Tell) -> SyncReport:
            open_client(f"http://127.0.0.1:{port}")
            return SyncReport(0, 0, 0)

        started = time.monotonic()
        with pytest.raises(Exception, match=r"Max retries|timed out|refused") as caught:
            retry_sync(attempt, SILENT)
        assert classify_tracking_error(caught.value).kind == "unreachable"
        return time.monotonic() - started

    with socket.create_server(("127.0.0.1", 0)) as frozen, ThreadPoolExecutor() as pool:
        ports = frozen.getsockname()[1], free_port()
        assert max(pool.map(seconds, ports)) < 20


def test_an_answer_that_is_cut_is_worth_a_wait() -> None:
    """The server is killed while it answers. Once the run was given up at once."""
    name = "api/2.0/mlflow/experiments/get-by-name"
    with serve(files={name: bytes(100)}, drops=[10] * 9) as server, pytest.raises(Exception, match="broken") as caught:
        mlflow.MlflowClient(server.url).get_experiment_by_name("demo")
    assert classify_tracking_error(caught.value).kind == "unreachable"


@pytest.mark.slow
def test_how_far_a_long_sync_is_goes_into_a_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_LINE_EVERY_SECONDS", 0.0)
    screen = io.StringIO()

    def slow(tell: Tell) -> SyncReport:
        for done in range(40):
            tell(done, 40)
            time.sleep(0.02)
        return SyncReport(40, 0, 0)

    retry_sync(slow, Console(file=screen), **QUICK)
    assert re.search(r"MLflow: \d+ of 40 runs, \d+ s left", screen.getvalue())
