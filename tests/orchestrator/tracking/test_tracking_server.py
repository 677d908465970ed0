"""The tracking server on a real PostgreSQL: whom it lets in, what it survives, and that no run is lost or doubled."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from orchestrator.store.results import Result
from orchestrator.tracking.background import BackgroundTracker
from orchestrator.tracking.database import check_database, find_postgres
from orchestrator.tracking.mlflow_server import ADMIN, Serving, is_loopback, mlflow_server
from orchestrator.tracking.server import driver_environment, serve
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.util.errors import UserError
from tests.helpers.waiting import PATIENCE, wait_for
from tests.orchestrator.tracking.test_tracking import SUMMARIES, describe, some_results

pytestmark = [
    pytest.mark.xdist_group("tracking-server"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),  # in MLflow
]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """`tracking serve` as a user starts it."""

    folder: Path
    port: int
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "orchestrator", "tracking", "serve", "--folder", str(self.folder)]
        log = open(self.folder.parent / "said.txt", "w")  # noqa: SIM115 - closed below
        with log:
            self.process = subprocess.Popen([*command, "--port", str(self.port)], stdout=log, stderr=log, text=True)
        wait_for(lambda: "until Ctrl-C" in self.said or self.process.poll() is not None)
        assert self.process.poll() is None, self.said

    @property
    def said(self) -> str:
        return (self.folder.parent / "said.txt").read_text()

    def children(self, word: str) -> list[psutil.Process]:
        assert self.process is not None
        found = psutil.Process(self.process.pid).children(recursive=True)
        return [child for child in found if word in " ".join(child.cmdline())]

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(PATIENCE)

    @property
    def password(self) -> str:
        return (self.folder / "admin-password").read_text()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            return get(f"{self.address}/health", None)[0] == 200
        except OSError:
            return False


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


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    # Not under pytest's own folder, which the user that PostgreSQL runs as may not enter.
    base = Path(tempfile.mkdtemp(prefix="bolt-tracking-"))
    base.chmod(0o755)
    try:
        find_postgres(base / "t")
    except UserError as error:
        shutil.rmtree(base)
        pytest.skip(str(error))
    made = Server(base / "t", free_port())
    try:
        made.start()
        yield made
        assert made.stop() == 0
        assert not [
            p for p in psutil.process_iter(["cmdline"]) if str(made.folder) in " ".join(p.info["cmdline"] or ())
        ]
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
        shutil.rmtree(base, ignore_errors=True)


@pytest.fixture
def straight(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tracker]:
    """Opens an experiment the way a driver beside the server does."""
    lines = driver_environment(server.folder).splitlines()
    values = dict(line.removeprefix("export ").replace("'", "").split("=", 1) for line in lines)
    monkeypatch.setenv("PGPASSFILE", values["PGPASSFILE"])
    uri, artifacts = values["MLFLOW_TRACKING_URI"], values["BOLT_TRACKING_ARTIFACTS"]
    adapter = server.folder / "an-adapter"
    adapter.mkdir(exist_ok=True)
    (adapter / "weights.txt").write_text("1 2 3")
    return lambda name: Tracker(uri, artifacts, name, lambda cell_id: adapter)


@pytest.fixture
def remote(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Tracker]:
    """Opens an experiment the way a driver on another machine does."""
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", server.password)
    return lambda name: Tracker(server.address, None, name)


def test_it_lets_in_who_has_the_password_and_tells_nobody(server: Server) -> None:
    listing = f"{server.address}/api/2.0/mlflow/experiments/search?max_results=1"
    assert [get(listing, word)[0] for word in (None, "wrong password", server.password)] == [401, 401, 200]
    secrets = {name: (server.folder / name).read_text().strip() for name in ("admin-password", "secret-key", "pgpass")}
    secrets["pgpass"] = secrets["pgpass"].rpartition(":")[2]
    assert {(server.folder / name).stat().st_mode & 0o777 for name in secrets} == {0o600}
    command_lines = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    logs = [path.read_text() for path in (*server.folder.glob("*.log"), *server.folder.glob("*.ini"))] + [server.said]
    for secret in secrets.values():
        assert len(secret) >= 32
        assert not [text for text in (*command_lines, *logs) if secret in text]


def test_it_listens_on_loopback_alone(server: Server) -> None:
    assert server.process is not None
    everybody = [psutil.Process(server.process.pid), *server.children("")]
    listening = {c.laddr[:2] for p in everybody for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert listening == {("127.0.0.1", server.port)}


def test_what_is_written_straight_is_seen_through_the_server(
    server: Server, straight: Callable[[str], Tracker], remote: Callable[[str], Tracker]
) -> None:
    result = some_results()[0]
    straight("seen").log_result(result, describe(result))
    elsewhere = remote("seen")
    (run,) = elsewhere._search("")
    assert (run.info.status, run.data.metrics["accuracy"]) == ("FINISHED", 50.0 + 1 + 1 + 6)
    url = f"{server.address}/get-artifact?path=adapter/weights.txt&run_uuid={run.info.run_id}"
    assert get(url, server.password) == (200, b"1 2 3")
    assert get(url, None)[0] == 401
    assert straight("seen").sync([result], describe) == SyncReport(added=3, kept=1, removed=0)
    assert elsewhere.sync([result], describe, verify=True) == SyncReport(added=0, kept=4, removed=0)


def test_a_wrong_password_is_said_in_plain_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", ADMIN)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "not this one")
    said: list[str] = []
    results = {result.cell.id: result for result in some_results()[:3]}
    writer = BackgroundTracker(
        lambda: Tracker(server.address, None, "refused"), describe, results.__getitem__, say=said.append
    )
    for cell_id in results:
        writer.put(cell_id)
    wait_for(lambda: bool(said))
    words = "the tracking server does not take MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    assert writer.close() == f"3 runs could not be tracked: {words}"
    assert said == [f"{words}; the grid goes on"]


def finished_once(tracker: Tracker, results: list[Result]) -> None:
    """Every run there is is finished, and there is one of each cell and summary."""
    runs = list(tracker._search(""))
    assert {run.info.status for run in runs} == {"FINISHED"}
    keys = Counter(run.data.tags["run_key"] for run in runs)
    assert set(keys.values()) == {1}
    assert {result.cell.id for result in results} <= set(keys)
    assert len(keys) == len(results) + SUMMARIES


@pytest.mark.parametrize("word", ["mlflow server", "bin/postgres -D"])
def test_a_server_killed_while_a_grid_runs_comes_back_and_every_run_with_it(
    word: str,
    server: Server,
    straight: Callable[[str], Tracker],
    remote: Callable[[str], Tracker],
) -> None:
    name = f"killed-{word.split()[0][:5].replace('/', '-')}"
    opener = remote if word.startswith("mlflow") else straight
    results = some_results()
    stored = {result.cell.id: result for result in results}
    said: list[str] = []
    with BackgroundTracker(
        lambda: opener(name), describe, stored.__getitem__, say=said.append, pauses=(0.05, 0.5)
    ) as writer:
        for result in results[:8]:
            writer.put(result.cell.id)
        wait_for(lambda: writer.pending < 4)
        server.children(word)[0].kill()
        for result in results[8:]:
            writer.put(result.cell.id)
        wait_for(server.answers)
        wait_for(lambda: writer.pending == 0)
        assert writer.close() == ""
    assert "was ended by SIGKILL; started again" in server.said
    done = opener(name).sync(results, describe)
    assert done.added + done.kept == len(results) + SUMMARIES
    finished_once(opener(name), results)


def test_an_hour_without_a_server_costs_nothing_but_the_wait(
    server: Server, remote: Callable[[str], Tracker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hour is a stopped server and pauses of hundredths of a second: some hundred tries."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    results = some_results()
    stored = {result.cell.id: result for result in results}
    said: list[str] = []
    with BackgroundTracker(
        lambda: remote("hour"), describe, stored.__getitem__, say=said.append, pauses=(0.01, 0.02)
    ) as writer:
        writer.put(results[0].cell.id)
        wait_for(lambda: writer.pending == 0)
        frozen = server.children("uvicorn")
        for process in frozen:
            process.suspend()
        try:
            with monkeypatch.context() as impatient:
                impatient.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
                for result in results[1:]:
                    writer.put(result.cell.id)
                wait_for(lambda: bool(said))
                assert writer.pending >= len(results) - 3
        finally:
            for process in frozen:
                process.resume()
        wait_for(lambda: writer.pending == 0)
        assert writer.close() == ""
    assert [line.split(":")[0].split(";")[0] for line in said] == [
        "the tracking store cannot be reached",
        "written to again",
    ]
    remote("hour").sync(results, describe)
    finished_once(remote("hour"), results)


def test_a_second_server_on_the_folder_is_refused_and_a_taken_port_said(server: Server, tmp_path: Path) -> None:
    assert server.process is not None
    with pytest.raises(UserError, match=f"is served already, by process {server.process.pid}"):
        serve(Serving(server.folder, port=free_port()), print)
    with tempfile.TemporaryDirectory(prefix="bolt-tracking-") as other:
        Path(other).chmod(0o755)
        with pytest.raises(UserError, match=f"port {server.port} is taken"):
            serve(Serving(Path(other), port=server.port), print)


def test_a_server_killed_with_all_its_files_as_they_were_starts_again(server: Server) -> None:
    assert server.process is not None
    servers = server.children("bin/postgres -D") + server.children("mlflow")
    server.process.kill()
    server.process.wait()
    server.start()
    assert not [process for process in servers if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert get(f"{server.address}/api/2.0/mlflow/experiments/search?max_results=1", server.password)[0] == 200


def test_what_cannot_be_served_is_said_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="passwords cannot be switched off"):
        serve(Serving(tmp_path, host="0.0.0.0", auth=False), print)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        serve(Serving(tmp_path / "file" / "t", database="postgresql://nobody@127.0.0.1:1/x"), print)
    with pytest.raises(UserError, match="shown by `ps`"):
        check_database("postgresql://me:secret@127.0.0.1/x")
    with pytest.raises(UserError, match="the database cannot be used"):
        check_database(f"postgresql://me@127.0.0.1:{free_port()}/x")
    with pytest.raises(UserError, match="nothing has been served"):
        driver_environment(tmp_path)


def test_loopback_is_told_from_what_others_reach() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "localhost", "127.1.2.3")] == [True] * 5
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "head")] == [False] * 4


def test_a_server_for_a_network_knows_its_own_names_and_no_others(tmp_path: Path) -> None:
    serving = Serving(tmp_path, host="0.0.0.0", names=("mlflow.example.org",))
    environment = mlflow_server(serving, "postgresql+psycopg2://mlflow@/mlflow", {}).environment
    hosts = environment["MLFLOW_SERVER_ALLOWED_HOSTS"].split(",")
    assert {"localhost:*", "10.*", "mlflow.example.org:*", f"{socket.gethostname()}:*"} <= set(hosts)
    assert "*" not in hosts
    assert "http://mlflow.example.org:5000" in environment["MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"].split(",")
    alone = mlflow_server(Serving(tmp_path), "postgresql+psycopg2://mlflow@/mlflow", {}).environment
    assert "MLFLOW_SERVER_ALLOWED_HOSTS" not in alone  # MLflow's own choice is localhost and private addresses
