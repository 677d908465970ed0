"""A store in S3, on a real server of this machine: the same guarantees as in a folder, and the same bits."""

import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from fsspec import get_filesystem_class
from moto.server import ThreadedMotoServer
from rich.console import Console

from orchestrator.artifacts.spec import build as stage
from orchestrator.catalog import load_catalog
from orchestrator.cli.options import store_url
from orchestrator.core.settings import RunSettings
from orchestrator.execution.backend import run_cells_locally
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile, read_status
from orchestrator.progress.view import store_view
from orchestrator.sharing.merge import merge_stores
from orchestrator.store import STALE_ATTEMPT_SECONDS, CorruptArtifact, Store
from orchestrator.store.artifact import discard
from orchestrator.store.building import BuildProgress
from orchestrator.store.files import FOLDER, Files, local_folder, upload_folder
from orchestrator.store.lease import grid_lease
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize
from tests.conftest import GiveDatabase
from tests.helpers import cells as samples
from tests.helpers import command
from tests.helpers.file_server import losing_an_answer
from tests.helpers.warm_process import kill_forked_when
from tests.orchestrator.store.test_lease import check_one_driver, check_one_of_several_gets_it
from tests.orchestrator.store.test_store import ADDRESS, IDENTITY, build

pytestmark = pytest.mark.server
BUCKET = "lab"
URL = f"s3://{BUCKET}/runs"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """Start an S3 server on loopback."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a client with an empty bucket, and set the environment of the store to its server."""
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": endpoint, FOLDER: str(tmp_path / "cache")}.items():
        monkeypatch.setenv(name, value)
    get_filesystem_class("s3").clear_instance_cache()  # a kept one has the server of the test before
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    client = boto3.client("s3", endpoint_url=endpoint)
    client.create_bucket(Bucket=BUCKET)
    yield client
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        if "Contents" in page:
            client.delete_objects(Bucket=BUCKET, Delete={"Objects": [{"Key": one["Key"]} for one in page["Contents"]]})
    client.delete_bucket(Bucket=BUCKET)
    client.close()


def keys(client: Any, folder: str = "") -> list[str]:
    """Return the names of objects below a folder of the store."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"runs/{folder}")
    return [one["Key"].removeprefix("runs/") for page in pages for one in page.get("Contents", [])]


def body(client: Any, name: str) -> bytes:
    return bytes(client.get_object(Bucket=BUCKET, Key=f"runs/{name}")["Body"].read())


def put(client: Any, name: str, content: bytes) -> None:
    client.put_object(Bucket=BUCKET, Key=f"runs/{name}", Body=content)


ONLY = ["dataset=amounts", "method=zero_shot,tip_adapter,bolt_pooled", "seed=1"]


def grid(folder: Path, *more: str) -> list[str]:
    """Return the arguments of the ``grid`` command for three cells of the mini grid."""
    only = [word for value in ONLY for word in ("--only", value)]
    return command.arguments(folder, *only, *more, store=URL)[3:]


def measured_in_a_folder(folder: Path) -> dict[str, object]:
    """Return the results of the same cells from a run without faults in a local store."""
    files, images, store = [folder / "own.yaml"], folder / "images", folder / "runs"
    settings = RunSettings(str(store), device="cpu", catalog_files=(str(files[0]),), data_root=str(images))
    catalog = load_catalog(files)
    wanted = load_grid(folder / "mini.yaml", catalog, only=ONLY, data_root=images)
    for spec in make_plan(wanted, catalog, Store(store), images).missing:
        stage(spec, settings)
    run_cells_locally(wanted.cells, settings, on_event=lambda event: None)
    return command.scores(store)


@pytest.mark.e2e
@pytest.mark.ray
def test_a_damaged_grid_in_s3_is_that_in_a_folder(tmp_path: Path, s3: Any, give_database: GiveDatabase) -> None:
    give_database(tmp_path / "mlflow.db")

    def under_way() -> bool:
        time.sleep(0.2)  # the server is in this process too
        return any(name.endswith(".json") for name in keys(s3, "results/"))

    assert kill_forked_when(grid(tmp_path, "--local"), under_way)
    finished = [name for name in keys(s3, "results/") if name.endswith(".json")]  # one, unless the killer came late
    result = finished[0]
    put(s3, result, body(s3, result)[:-40])
    head = next(name for name in keys(s3, "features/") if "amounts" in name and name.endswith("head.safetensors"))
    put(s3, head, body(s3, head)[:-3] + b"bad")
    put(s3, "images/half--00000000/1-0000dead/pixels.bin", b"half")
    sources = [name for name in keys(s3, "sources/") if name.endswith("manifest.json")]
    resumed = command.orchestrator(*grid(tmp_path))
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    assert "taking over from process" in resumed.stdout
    assert "damaged result set aside" in resumed.stdout
    trials = pluralize(4 - len(finished), "trial")
    assert f"this run: 1 artifact built, {trials} started" in resumed.stdout, resumed.stdout
    assert f"and in the store {URL}/reports/mini/index.html" in resumed.stdout
    names = keys(s3)
    results = [name for name in names if name.startswith("results/") and name.endswith(".json")]
    found = [json.loads(body(s3, name)) for name in results]
    fields = ("evaluations", "curves", "details", "trainable_parameters")
    assert {one["id"]: tuple(one[field] for field in fields) for one in found} == measured_in_a_folder(tmp_path)
    assert len(found) == 3
    assert f"{result}.damaged" in names
    assert sources == [name for name in names if name.startswith("sources/") and name.endswith("manifest.json")]
    assert any(name.startswith("adapters/") for name in names)
    assert not any(name.startswith("locks/") for name in names)
    reports = [name.removeprefix("reports/mini/") for name in names if name.startswith("reports/")]
    assert {"index.html", "rows.csv"} < set(reports)
    assert {name.partition("/")[0] for name in reports if "/" in name} == {"figures", "tables"}
    said = read_status(Files(URL), "mini")
    assert said.state == "ended"


def test_a_builder_that_is_killed_leaves_no_artifact_and_the_next_sweeps(s3: Any) -> None:
    script = f"""
import os, sys
sys.path.insert(0, {os.getcwd()!r})
from orchestrator.store import Store
with Store({URL!r}).building({ADDRESS!r}, {IDENTITY!r}) as builder:
    (builder.folder / "numbers.bin").write_bytes(bytes(1000))
    print("written", flush=True)
    sys.stdin.read()
"""
    builder = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert builder.stdout.readline() == "written\n"
    os.kill(builder.pid, signal.SIGKILL)
    builder.communicate()
    store = Store(URL)
    assert store.artifact(ADDRESS) is None
    cache = Path(os.environ[FOLDER])
    assert list(cache.glob("processes/*/*/numbers.bin"))
    build(store)
    assert list(cache.glob("processes/*/*/numbers.bin")) == []
    found = store.artifact(ADDRESS, IDENTITY)
    assert found.path("numbers.bin").read_bytes() == b"123"


def test_attempts_of_crashed_builders_are_swept_when_they_are_old(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    put(s3, f"{ADDRESS}/1-0000dead/numbers.bin", b"half")
    build(Store(URL))
    assert f"{ADDRESS}/1-0000dead/numbers.bin" in keys(s3)
    monkeypatch.setattr("orchestrator.store.building.STALE_ATTEMPT_SECONDS", -STALE_ATTEMPT_SECONDS)
    discard(Files(URL), ADDRESS)
    build(Store(URL))
    assert f"{ADDRESS}/1-0000dead/numbers.bin" not in keys(s3)
    found = Store(URL).artifact(ADDRESS)
    found.verify()


def test_a_fetched_artifact_is_read_from_this_disk(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(Store(URL))
    monkeypatch.setenv(FOLDER, str(tmp_path / "another machine"))
    found = Store(URL).artifact(ADDRESS, IDENTITY)
    path = found.path("numbers.bin")
    assert path.read_bytes() == b"123"
    s3.delete_object(Bucket=BUCKET, Key=f"runs/{found.files['numbers.bin'][0]}")
    assert found.path("numbers.bin") == path
    with pytest.raises(CorruptArtifact):
        found.verify()


@pytest.mark.parametrize("damage", [b"12", b"124", b"", None])
def test_damaged_objects_are_found(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    store = Store(URL)
    build(store)
    found = store.artifact(ADDRESS)
    found.verify()  # and this machine has a whole copy, which others may not have
    stored = found.files["numbers.bin"][0]
    s3.delete_object(Bucket=BUCKET, Key=f"runs/{stored}")
    if damage is not None:
        put(s3, stored, damage)
    with pytest.raises(CorruptArtifact):
        found.verify()
    monkeypatch.setenv(FOLDER, str(tmp_path / "another machine"))
    with pytest.raises(CorruptArtifact):
        found.path("numbers.bin")
    assert store.artifact(ADDRESS) is None
    build(store)
    assert store.is_intact(ADDRESS)


def test_a_bucket_that_was_copied_keeps_its_artifacts(s3: Any) -> None:
    """Each server makes its own tags, so another tag alone is no damage."""
    build(Store(URL))
    manifest = json.loads(body(s3, f"{ADDRESS}/manifest.json"))
    assert manifest["tags"]["numbers.bin"]
    manifest["tags"]["numbers.bin"] = "0123456789abcdef-2"
    put(s3, f"{ADDRESS}/manifest.json", json.dumps(manifest).encode())
    found = Store(URL).artifact(ADDRESS, IDENTITY)
    found.verify()
    assert Store(URL).addresses("spectra") == [ADDRESS]


def test_more_results_than_a_page_and_those_of_others_are_read(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of the test's server has a hundred names; one of S3 has a thousand."""
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "100")
    cells = [samples.cell(seed) for seed in range(110)]
    store, others = Store(URL), Store(URL)
    assert store.read_results(cell.id for cell in cells) == ([], [])
    texts = {f"results/{cell.id}.json": samples.result(cell).to_json().encode() for cell in cells[:-1]}
    others.files.map(lambda item: others.files.write(*item), texts.items())
    assert s3.list_objects_v2(Bucket=BUCKET)["IsTruncated"]
    assert [result.cell for result in store.read_results(cell.id for cell in cells)[0]] == cells[:-1]
    others.write_result(samples.result(cells[-1]))
    others.write_result(samples.result(cells[0], epochs=7))
    put(s3, f"results/{cells[1].id}.json", b"{")
    found, damaged = store.read_results(cell.id for cell in cells)
    assert [result.cell for result in found] == [cells[0], *cells[2:]]
    assert len(found[0].curves["train_loss"]) == 7
    assert damaged == [cells[1].id]
    assert cells[1].id not in store.result_ids()
    copies = local_folder(Files(URL), "results")
    one = copies / f"{cells[5].id}.json"
    one.write_bytes(one.read_bytes()[:100])  # a local copy with other content is not used
    assert Store(URL).read_results(cell.id for cell in cells)[0] == found


def test_failures_logs_and_adapters(s3: Any, tmp_path: Path) -> None:
    store = Store(URL)
    for name in ("cell-1", "cell-2", "images/three"):
        log = store.write_log(name, "trace")
        store.write_failure(Failure(name, "no", "trace", log, 1, ""))
    assert log == f"{URL}/logs/images.three.log"
    assert set(store.read_failures()) == {"cell-1", "cell-2", "images/three"}
    store.remove_failures(["cell-1", "images/three", "never"])
    assert set(store.read_failures()) == {"cell-2"}
    assert store.adapter_folder("cell-1") is None
    store.write_adapter("cell-1", {"a.bin": b"a", "adapter.json": b"{}"})
    folder = store.adapter_folder("cell-1")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"a.bin": b"a", "adapter.json": b"{}"}


def test_results_are_merged_out_of_a_bucket_and_into_one(s3: Any, tmp_path: Path) -> None:
    remote, local, back = Store(URL), Store(tmp_path / "runs"), Store(f"{URL}-copy")
    cells = [samples.cell(seed) for seed in (1, 2, 3)]
    for cell in cells:
        result, predictions = samples.predictions(samples.result(cell))
        content = b"weights"
        index = json.dumps({"files": {"adapter.safetensors": hashlib.sha256(content).hexdigest()}}).encode()
        remote.write_adapter(cell.id, {"adapter.safetensors": content, "bolt.json": index})
        remote.write_result(result, predictions)
    local.write_result(*samples.predictions(samples.result(cells[0])))
    remote.files.remove(f"results/{cells[2].id}.json")
    remote.write_failure(Failure(cells[2].id, "lost", "", remote.write_log(cells[2].id, "why"), 1, "2026-01-01"))
    merged, failures = merge_stores(local, remote)
    assert {cell.cell_id: cell.kind for cell in merged} == {cells[0].id: "same", cells[1].id: "taken"}
    assert all(cell.adapter for cell in merged)
    assert failures == [cells[2].id]
    assert Path(local.read_failures()[cells[2].id].log).read_text() == "why"
    assert [cell.kind for cell in merge_stores(back, local)[0]] == ["taken", "taken"]
    for cell in cells[:2]:
        for name in (f"results/{cell.id}.json", f"results/{cell.id}.npz", f"adapters/{cell.id}/bolt.json"):
            assert back.files.read(name) == local.files.read(name)


def test_a_published_folder_holds_what_the_machines_copy_holds(s3: Any) -> None:
    store = Store(URL)
    local = local_folder(store.files, "reports/demo")
    for name in ("index.html", "tables/old.csv", ".building-1/half.csv"):
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_text(name)
    upload_folder(store.files, "reports/demo", last="index.html")
    assert keys(s3) == ["reports/demo/index.html", "reports/demo/tables/old.csv"]
    (local / "tables" / "old.csv").rename(local / "tables" / "new.csv")
    upload_folder(store.files, "reports/demo", last="index.html")
    assert keys(s3) == ["reports/demo/index.html", "reports/demo/tables/new.csv"]


def test_a_lease_is_held_if_the_answer_to_its_write_is_lost(
    s3: Any, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client library repeats the request, which the server refuses, because the first one has written the lease."""
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # or else it sends chunks
    with losing_an_answer(endpoint) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        get_filesystem_class("s3").clear_instance_cache()
        with grid_lease(Files(URL), "demo"):
            assert keys(s3, "locks/") == ["locks/demo.lease"]
    assert keys(s3, "locks/") == []


def test_a_bucket_has_one_driver_at_a_time(s3: Any) -> None:
    check_one_driver(URL)
    check_one_of_several_gets_it(URL, 6)
    assert keys(s3) == []


def test_a_run_is_seen_from_another_machine(s3: Any) -> None:
    assert read_status(Files(URL), "demo") is None
    file = StatusFile(Files(URL), "demo", "Demo", "the command")
    file.write("running", Snapshot(waiting=3))
    file.write("running", Snapshot(waiting=2))  # too soon to be worth a request
    found = read_status(Files(URL), "demo")
    assert (found.state, found.shot.waiting) == ("running", 3)
    file.write("ended", Snapshot(finished=3))
    console = Console(width=200)
    with console.capture() as shown:
        console.print(store_view(Store(URL)))
    assert shown.get().splitlines()[1].split()[:2] == ["demo", "ended"]


def test_a_builder_says_how_far_it_is_to_whoever_looks(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.store.building.WRITE_SECONDS", 0.0)
    note, store = BuildProgress(Files(URL), ADDRESS), Store(URL)
    note.write(1_500, 3_000)
    assert store.build_progress(ADDRESS) == "1,500 of 3,000"
    note.remove()
    assert store.build_progress(ADDRESS) == ""


def test_a_bucket_that_is_not_there(s3: Any) -> None:
    """The error is an OSError, so that code which tolerates a full disk tolerates an unavailable store."""
    url = "s3://nobody-has-this/runs"
    for use in (lambda: Store(url).read_results(["x"]), lambda: grid_lease(Files(url), "demo").__enter__()):
        with pytest.raises(UserError, match=f"{url}: .* there is no such bucket") as caught:
            use()
        assert len(str(caught.value).splitlines()) <= 2
    with pytest.raises(OSError, match="no such bucket"):
        Files(url).write("a", b"")
    StatusFile(Files(url), "demo").write("running", Snapshot())
    with pytest.raises(UserError, match="names no bucket"):
        Store("s3://")
    done = command.orchestrator("grid", "smoke", "--local", "--store", url)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert "there is no such bucket" in done.stderr


NOBODY = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_MAX_ATTEMPTS": "1"}
NO_KEY = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true", "FSSPEC_S3": "{}"}


@pytest.mark.parametrize(
    ("variables", "says"), [(NO_KEY, "there are no credentials"), (NOBODY, "the server cannot be reached")]
)
def test_a_server_that_cannot_be_used(
    s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], says: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    script = f"from orchestrator.store import Store; Store({URL!r}).files.read('a')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert f"{URL}: the store cannot be used: {says}" in done.stderr
    assert variables is NO_KEY or "AWS_ENDPOINT_URL" in done.stderr


def test_settings_of_a_store_in_s3_know_it_from_any_folder() -> None:
    assert RunSettings(store_url(URL)).store_url == URL
