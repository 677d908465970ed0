"""Tracking on a real ``mlflow server`` with passwords, on a real PostgreSQL where one is installed, else on SQLite."""

import base64
import signal
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.tracking.client import open_client
from orchestrator.tracking.errors import classify_tracking_error
from orchestrator.tracking.location import TrackingLocation, tracking_location
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.util.errors import UserError
from tests.helpers.tracking_servers import ADMIN, MlflowServer, Postgres, postgres_programs
from tests.helpers.waiting import wait_for
from tests.orchestrator.tracking.examples import SUMMARIES, describe, in_background, some_results

pytestmark = pytest.mark.server
Open = Callable[[str], Tracker]
"""Opens the experiment of a name."""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Not pytest's own folder, which the user that PostgreSQL runs as may not enter."""
    with tempfile.TemporaryDirectory(prefix="bolt-tracking-") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def postgres(folder: Path) -> Iterator[Postgres | None]:
    """Return a running PostgreSQL; ``None`` where it is not installed."""
    programs = postgres_programs()
    if programs is None:
        yield None
        return
    made = Postgres(programs, folder)
    try:
        made.start()
        yield made
    finally:
        made.stop(signal.SIGINT)


@pytest.fixture(scope="module")
def server(folder: Path, postgres: Postgres | None) -> Iterator[MlflowServer]:
    made = MlflowServer(folder, postgres)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def direct(server: MlflowServer, postgres: Postgres | None, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open an experiment as a driver beside the server does: straight in PostgreSQL."""
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")
    monkeypatch.setenv("PGPASSFILE", str(postgres.password_file))
    adapter = server.folder / "an-adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "weights.txt").write_text("1 2 3")
    place = TrackingLocation(server.database, server.artifacts.as_uri())
    return lambda name: Tracker(place, name, lambda cell_id: adapter)


@pytest.fixture
def remote(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Open an experiment as a driver on another machine does: through the server."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.password)
    return lambda name: Tracker(TrackingLocation(server.uri, None), name)


def get(url: str, password: str | None) -> tuple[int, bytes]:
    """Status and body."""
    request = urllib.request.Request(url)
    if password is not None:
        request.add_header("Authorization", "Basic " + base64.b64encode(f"{ADMIN}:{password}".encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def assert_every_run_finished_once(tracker: Tracker, results: list[Result]) -> None:
    runs = list(tracker._search(""))
    assert {run.info.status for run in runs} == {"FINISHED"}
    keys = Counter(run.data.tags["run_key"] for run in runs)
    assert set(keys.values()) == {1}
    assert {result.cell.id for result in results} <= set(keys)
    assert len(keys) == len(results) + SUMMARIES


def test_runs_written_to_postgres_are_seen_through_the_server(server: MlflowServer, direct: Open, remote: Open) -> None:
    result = some_results()[0]
    direct("seen").log_result(result, describe(result))
    (run,) = remote("seen")._search("")
    assert (run.info.status, run.data.metrics["accuracy"]) == ("FINISHED", 50.0 + 1 + 1 + 6)
    url = f"{server.uri}/get-artifact?path=adapter/weights.txt&run_uuid={run.info.run_id}"
    assert get(url, server.password) == (200, b"1 2 3")
    assert get(url, None)[0] == 401
    assert direct("seen").sync([result], describe) == SyncReport(added=3, kept=1, removed=0)
    assert remote("seen").sync([result], describe, verify=True) == SyncReport(added=0, kept=4, removed=0)


def test_a_wrong_password_stops_the_tracking_only(server: MlflowServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "not this one")
    said, results = list[str](), some_results()[:3]
    place = TrackingLocation(server.uri, None)
    writer = in_background(lambda: Tracker(place, "refused"), results, say=said.append)
    for result in results:
        writer.put(result.cell.id)
    wait_for(lambda: bool(said))
    problem = writer.close()
    assert problem.startswith("3 runs")
    assert len(said) == 1
    assert all("MLFLOW_TRACKING_PASSWORD" in line for line in (problem, *said))


def test_postgres_and_a_wrong_password(
    postgres: Postgres | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if postgres is None:
        pytest.skip("PostgreSQL is not installed")
    (tmp_path / "pgpass").write_text("*:*:*:mlflow:wrong\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    with pytest.raises(Exception, match="password") as found:
        open_client(postgres.uri)
    problem = classify_tracking_error(found.value)
    assert problem.kind == "refused"
    assert "PGPASSFILE" in problem.message


@pytest.mark.parametrize("killed", ["server", "database"])
def test_runs_written_while_a_server_was_down_are_written_when_it_is_back(
    killed: str, server: MlflowServer, postgres: Postgres | None, request: pytest.FixtureRequest
) -> None:
    open_tracker: Open = request.getfixturevalue("remote" if killed == "server" else "direct")
    name = f"killed-{killed}"
    target = server if killed == "server" else postgres
    results = some_results()
    said: list[str] = []
    with in_background(lambda: open_tracker(name), results, say=said.append, pauses=(0.05, 0.5)) as writer:
        for result in results[:8]:
            writer.put(result.cell.id)
        wait_for(lambda: writer.pending < 4)
        target.kill()
        for result in results[8:]:
            writer.put(result.cell.id)
        wait_for(lambda: bool(said))
        target.start()
        wait_for(lambda: writer.pending == 0)
        assert writer.close() == ""
    assert len(said) == 2
    done = open_tracker(name).sync(results, describe)
    assert done.added + done.kept == len(results) + SUMMARIES
    assert_every_run_finished_once(open_tracker(name), results)


def test_an_hour_without_answer_costs_it(server: MlflowServer, remote: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hour is a stopped server and pauses of hundredths of a second."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    results = some_results()
    said: list[str] = []
    with in_background(lambda: remote("hour"), results, say=said.append, pauses=(0.01, 0.02)) as writer:
        writer.put(results[0].cell.id)
        wait_for(lambda: writer.pending == 0)
        server.send(signal.SIGSTOP)
        try:
            with monkeypatch.context() as short:
                short.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
                for result in results[1:]:
                    writer.put(result.cell.id)
                wait_for(lambda: bool(said))
                assert writer.pending >= len(results) - 3
        finally:
            server.send(signal.SIGCONT)
        wait_for(lambda: writer.pending == 0)
        assert writer.close() == ""
    assert len(said) == 2
    remote("hour").sync(results, describe)
    assert_every_run_finished_once(remote("hour"), results)


@pytest.mark.parametrize(
    ("uri", "named"), [("postgresql://me@db/runs", "BOLT_TRACKING_ARTIFACTS"), ("ftp://host", "MLFLOW_TRACKING_URI")]
)
def test_an_address_that_cannot_be_tracked_to_names_the_variable(
    uri: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.delenv("BOLT_TRACKING_ARTIFACTS", raising=False)
    with pytest.raises(UserError, match=named):
        tracking_location(Store(tmp_path))


def test_postgres_by_its_url_knows_artifacts_and_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql://me@db:5432/runs")
    monkeypatch.setenv("BOLT_TRACKING_ARTIFACTS", "s3://bucket/mlflow")
    monkeypatch.setenv("BOLT_TRACKING_SERVER", "http://head:5000")
    found = tracking_location(Store(tmp_path))
    assert found.uri == "postgresql+psycopg2://me@db:5432/runs"
    assert (found.artifacts, found.server, found.database) == ("s3://bucket/mlflow", "http://head:5000", None)
