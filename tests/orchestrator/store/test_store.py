"""The store: artifacts are complete or absent, and an address has one identity."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from orchestrator.sharing.merge import merge_stores
from orchestrator.store import STALE_ATTEMPT_SECONDS, CorruptArtifact, Store
from orchestrator.store.errors import StoreUnavailable, is_store_error, retry_store
from orchestrator.store.files import Files
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.helpers.waiting import TIMEOUT, at_once

ROOT = Path(__file__).parents[3]
IDENTITY = {"kind": "Numbers", "top": 3}
ADDRESS = "spectra/numbers--0123abcd"


def build(store: Store, content: bytes = b"123", address: str = ADDRESS) -> None:
    with store.building(address, IDENTITY) as builder:
        (builder.folder / "numbers.bin").write_bytes(content)
        builder.meta["count"] = len(content)


@pytest.mark.parametrize("linked", [False, True], ids=["", "the store is a link itself"])
def test_an_artifact_is_there_with_its_files_identity_and_notes(tmp_path: Path, linked: bool) -> None:
    if linked:
        (tmp_path / "disk").mkdir()
        (tmp_path / "store").symlink_to(tmp_path / "disk")
    store = Store(tmp_path / "store")
    assert store.artifact(ADDRESS) is None
    build(store)
    found = store.artifact(ADDRESS, IDENTITY)
    assert found.path("numbers.bin").read_bytes() == b"123"
    assert found.meta == {"count": 3}
    assert store.addresses("spectra") == [ADDRESS]
    found.verify()
    with pytest.raises(UserError, match="already holds another artifact"):  # and no reason to build it again
        store.artifact(ADDRESS, {"kind": "Numbers", "top": 4})


def test_a_builder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def fail_half_way() -> None:
        with store.building(ADDRESS, IDENTITY) as builder:
            (builder.folder / "numbers.bin").write_bytes(b"12")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_half_way()
    assert store.artifact(ADDRESS) is None
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_what_a_killed_builder_left_is_not_the_artifact_and_is_swept_later(tmp_path: Path) -> None:
    store = Store(tmp_path)
    orphan = tmp_path / ADDRESS / "1-0000dead"
    orphan.mkdir(parents=True)
    (orphan / "numbers.bin").write_bytes(b"1")
    assert store.artifact(ADDRESS) is None
    long_ago = time.time() - 2 * STALE_ATTEMPT_SECONDS
    os.utime(orphan / "numbers.bin", (long_ago, long_ago))
    os.utime(orphan, (long_ago, long_ago))
    build(store)
    assert not orphan.exists()
    assert store.artifact(ADDRESS, IDENTITY) is not None


KILLED_BUILDER = f"""
import os, signal, sys
from orchestrator.store import Store
with Store(sys.argv[1]).building({ADDRESS!r}, {IDENTITY!r}) as builder:
    (builder.folder / "numbers.bin").write_bytes(b"1")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_builder_of_this_machine_left_goes_with_the_next_build(tmp_path: Path) -> None:
    """The files of a killed builder once stayed for a day, although the artifact was built again."""
    killed = subprocess.run([sys.executable, "-c", KILLED_BUILDER, str(tmp_path)], cwd=ROOT)
    assert killed.returncode == -signal.SIGKILL
    (left,) = (tmp_path / ADDRESS).iterdir()
    store = Store(tmp_path)
    with store.building(ADDRESS, IDENTITY) as slow:
        (slow.folder / "numbers.bin").write_bytes(b"123")
        build(store)
        assert slow.folder.exists(), "an attempt whose builder lives was swept"
        assert not left.exists()
    found = store.artifact(ADDRESS, IDENTITY)
    assert [path.name for path in found.path("numbers.bin").parent.iterdir()] == ["numbers.bin"]


@pytest.mark.parametrize("damage", [b"12", b"124", b""])
def test_a_damaged_file_is_found_and_the_artifact_can_be_built_again(tmp_path: Path, damage: bytes) -> None:
    store = Store(tmp_path)
    build(store)
    store.artifact(ADDRESS).path("numbers.bin").write_bytes(damage)
    assert not store.is_intact(ADDRESS)
    assert store.artifact(ADDRESS) is None
    build(store)
    assert store.is_intact(ADDRESS)


@pytest.mark.parametrize(
    "damage",
    [lambda text: text[:50], lambda text: json.dumps({**json.loads(text), "identity": float("nan")})],
    ids=["truncated", "its identity is NaN, which Python reads although it is no JSON"],
)
def test_a_damaged_manifest_is_corrupt_and_not_the_users_error(tmp_path: Path, damage: Callable[[str], str]) -> None:
    store = Store(tmp_path)
    build(store)
    manifest = tmp_path / ADDRESS / "manifest.json"
    manifest.write_text(damage(manifest.read_text()))
    with pytest.raises(CorruptArtifact, match="cannot be read"):
        store.artifact(ADDRESS, IDENTITY)


SECRET = "not for those who may write into a store"


DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()
OWN = f"{ADDRESS}/1-a/secret"
OUTSIDE = ["../secret", f"{ADDRESS}/../../../secret", "/{outside}", f"{ADDRESS}/a\\..\\secret", f"{ADDRESS}/a\0/secret",
           "images/other--00000000/1-a/secret", f"{ADDRESS}/{'x' * 300}/secret", "", 7, None]  # fmt: skip
ENTRIES = [[], ["a"], [OWN, -1, "0" * 64], [OWN, True, "0" * 64], [OWN, 1, "x"], "ab"]


@pytest.mark.parametrize("entry", [*([path, len(SECRET), DIGEST] for path in OUTSIDE), *ENTRIES], ids=repr)
def test_a_manifest_that_no_builder_wrote_reads_nothing_outside_of_its_artifact(tmp_path: Path, entry: Any) -> None:
    (tmp_path / "secret").write_text(SECRET)
    text = json.dumps(entry).replace("{outside}", str(tmp_path / "secret"))
    store = Store(tmp_path / "store")
    body = {"address": ADDRESS, "identity": IDENTITY, "meta": {}, "files": {"secret": json.loads(text)}}
    store.files.write(f"{ADDRESS}/manifest.json", json.dumps(body).encode())
    with pytest.raises(CorruptArtifact, match="cannot be read"):
        store.artifact(ADDRESS)


@pytest.mark.parametrize("linked", ["numbers.bin", "attempt", "kind"])
def test_a_link_out_of_the_store_is_not_followed(tmp_path: Path, linked: str) -> None:
    store = Store(tmp_path / "store")
    build(store)
    found = store.artifact(ADDRESS)
    file = tmp_path / "store" / found.files["numbers.bin"][0]
    moved = {"numbers.bin": file, "attempt": file.parent, "kind": tmp_path / "store" / "spectra"}[linked]
    moved.rename(tmp_path / "elsewhere")
    moved.symlink_to(tmp_path / "elsewhere")
    for read in (lambda: found.path("numbers.bin"), found.verify):
        with pytest.raises(UserError, match="leads out of the store"):
            read()


@pytest.mark.parametrize("linked", ["results/{}.json", "results/{}.npz", "results", "failures/{}.json"])
def test_a_record_linked_to_outside_the_store_is_not_read(tmp_path: Path, linked: str) -> None:
    root, cell = tmp_path / "store", samples.cell()
    store, result = Store(root), samples.result(cell)
    store.write_result(result)
    (root / f"results/{cell.id}.npz").write_bytes(b"x")
    (root / "failures").mkdir(exist_ok=True)
    (root / f"failures/{cell.id}.json").write_text("x")
    assert store.read_result(cell.id) == result
    path = root / linked.format(cell.id)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    folder = linked.partition("/")[0]
    (other := Store(tmp_path / "other")).write_result(samples.result(samples.cell(2)))
    reads: list[Callable[[], object]] = [
        lambda: Store(root).files.read_many([f"{folder}/{cell.id}{ending}" for ending in (".json", ".npz")])
    ]
    if linked == "results/{}.json":
        reads += [lambda: store.read_results([cell.id]), lambda: merge_stores(other, store)]
    for read in reads:
        with pytest.raises(UserError, match="leads out of the store"):
            read()


def test_a_record_that_would_fill_the_memory_is_not_read(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (tmp_path / "results").mkdir()
    for name in ("x.json", "x.npz"):
        with (tmp_path / "results" / name).open("wb") as stream:
            stream.truncate(2**31)  # a sparse file takes no space on the disk
    for read in (
        lambda: store.files.read("results/x.json"),
        lambda: store.files.read("results/x.npz"),
        lambda: store.read_results(["x"]),
        lambda: merge_stores(Store(tmp_path / "other"), store),
    ):
        with pytest.raises(UserError, match="2048 MiB"):
            read()


def test_two_builders_at_once_leave_one_whole_artifact(tmp_path: Path) -> None:
    barrier = threading.Barrier(2)

    def work(number: int) -> None:
        with Store(tmp_path).building(ADDRESS, IDENTITY) as builder:
            (builder.folder / "numbers.bin").write_bytes((b"a" * 1000, b"b" * 2000)[number])
            barrier.wait(TIMEOUT)

    at_once(2, work)
    found = Store(tmp_path).artifact(ADDRESS, IDENTITY)
    found.verify()


@pytest.mark.parametrize(
    "name",
    [
        "../x", "/etc/passwd", "a/../../x", "a//b", "", "a/./b", "a\\b", "a\0b", "a\nb", "x" * 300,
        "/".join(["x" * 99] * 20),
    ],
    ids=lambda name: repr(name[:12]),
)  # fmt: skip
def test_names_cannot_leave_the_store(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="not a plain name"):
        Files(tmp_path).write(name, b"")


def test_a_failed_write_keeps_the_old_file_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write("a.txt", b"old")
    with pytest.raises(TypeError):
        files.write("a.txt", "not bytes")  # type: ignore[arg-type]
    assert files.read("a.txt") == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize("url", ["nosuchscheme://bucket", f"/tmp/{'x' * 300}", "/tmp/\0"])
def test_a_store_that_cannot_exist_is_a_users_error(url: str) -> None:
    with pytest.raises(UserError, match="cannot use"):
        Store(url)


def test_a_disk_that_is_away_is_an_error_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(path: object, **more: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("os.stat", away)
    monkeypatch.setattr("os.scandir", away)
    store = Store(tmp_path)
    with pytest.raises(StoreUnavailable, match="Stale file handle"):
        store.result_ids()


def test_results_and_failures_round_trip(tmp_path: Path) -> None:
    store, cell = Store(tmp_path), samples.cell(1)
    for name in (cell.id, "one", "two", "images/three"):
        store.write_failure(Failure(name, "ValueError: no", "trace", "log", 1, "2026-01-01T00:00:00+00:00"))
    store.remove_failures(["one", "images/three", "never failed"])
    assert set(store.read_failures()) == {cell.id, "two"}
    result = samples.result(cell)
    store.write_result(result)
    assert set(store.read_failures()) == {"two"}
    assert store.read_results([cell.id, samples.cell(2).id]) == ([result], [])
    store.files.write("failures/two.json", b"{")
    assert "damaged" in store.read_failures()["two"].error
    path = tmp_path / "results" / f"{cell.id}.json"
    data = json.loads(path.read_text())
    data["cell"]["shots"] = 16
    path.write_text(json.dumps(data))
    with pytest.raises(ValueError, match="checksum"):  # an edited result is not taken for the cell's
        store.read_result(cell.id)


@pytest.mark.parametrize("keep", [0, -2])
def test_a_truncated_result_is_set_aside_and_its_cell_is_open_again(tmp_path: Path, keep: int) -> None:
    store, cell = Store(tmp_path), samples.cell(1)
    store.write_result(samples.result(cell))
    path = tmp_path / "results" / f"{cell.id}.json"
    path.write_text(path.read_text()[:keep])
    assert store.read_results([cell.id]) == ([], [cell.id])
    assert store.result_ids() == frozenset()
    assert [p.name for p in path.parent.iterdir()] == [f"{cell.id}.json.damaged"]
    assert Store(tmp_path).read_results([cell.id]) == ([], [cell.id])  # every command names it, not only the first
    store.write_result(samples.result(cell))
    assert Store(tmp_path).read_results([cell.id]) == ([samples.result(cell)], [])


def test_a_damaged_result_of_a_read_only_store_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store, cells = Store(tmp_path), [samples.cell(seed) for seed in (1, 2)]
    for cell in cells:
        store.write_result(samples.result(cell))
    (tmp_path / "results" / f"{cells[0].id}.json").write_text("{}")
    monkeypatch.setattr(shutil, "move", refused)  # root, as tests may run, may write everywhere else
    for _ in range(2):
        assert store.read_results([cell.id for cell in cells]) == ([samples.result(cells[1])], [cells[0].id])


def test_the_log_of_a_failure_is_where_the_store_is(tmp_path: Path) -> None:
    store = Store(tmp_path / "before")
    for name in ("a-cell", "images/one"):
        store.write_failure(Failure(name, "ValueError: no", "", store.write_log(name, f"of {name}"), 1, ""))
    moved = Store((tmp_path / "before").rename(tmp_path / "after"))
    for name, failure in moved.read_failures().items():
        assert Path(failure.log).read_text() == f"of {name}"
        assert moved.read_failure(name) == failure


def test_results_are_read_again_when_their_files_are_others(tmp_path: Path) -> None:
    store, cells = Store(tmp_path), [samples.cell(seed) for seed in range(3)]
    for cell in cells:
        Store(tmp_path).write_result(samples.result(cell))
    assert len(store.read_results(cell.id for cell in cells)[0]) == 3
    Store(tmp_path).write_result(samples.result(cells[1], epochs=7))
    Store(tmp_path).files.remove(f"results/{cells[2].id}.json")
    found, damaged = store.read_results(cell.id for cell in cells)
    assert [len(result.curves["train_loss"]) for result in found] == [3, 7]
    assert damaged == []


@pytest.mark.parametrize("links", [True, False], ids=["", "where a file has one name"])
def test_of_several_that_create_a_file_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool) -> None:
    def refused(*names: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    if not links:  # as exFAT and many Windows shares have it
        monkeypatch.setattr(os, "link", refused)

    def create(number: int) -> bool:
        files, content = Files(tmp_path), str(number).encode()
        return files.create("locks/one", content) and files.read("locks/one") == content

    created = at_once(4, create)
    assert sorted(created) == [False, False, False, True]
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["one"]


def test_a_store_that_is_a_file_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file")
    for look in (lambda: store.read_results(["a"]), store.read_failures, lambda: store.artifact(ADDRESS)):
        with pytest.raises(UserError, match=rf"{tmp_path}/file/\S+: the store cannot be used: a part of this path"):
            look()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / ADDRESS / "manifest.json").mkdir(parents=True)
    with pytest.raises(UserError, match=f"{ADDRESS}/manifest.json: the store cannot be used: a folder is there"):
        Store(tmp_path).artifact(ADDRESS)


def test_a_full_disk_or_an_unavailable_store_is_a_failure_of_the_store() -> None:
    full = OSError(28, "No space left on device")
    wrapped = ValueError("cannot save")
    wrapped.__cause__ = full
    assert all(map(is_store_error, (full, wrapped, StoreUnavailable("away"))))
    assert not any(map(is_store_error, (ValueError("full"), FileNotFoundError("x"), MemoryError())))


@pytest.mark.parametrize(
    ("local", "errno", "attempts"),
    [(False, None, 3), (True, None, 1), (False, 28, 1)],
    ids=["a server", "waiting repairs no disk", "a full disk"],
)
def test_only_remote_stores_are_retried(
    local: bool, errno: int | None, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.store.errors.PAUSES", (0.0, 0.0))
    tried = []

    def read() -> str:
        tried.append(1)
        if len(tried) < 3:
            error = StoreUnavailable("the server does not answer")
            error.errno = errno
            raise error
        return "read"

    with nullcontext() if attempts == 3 else pytest.raises(StoreUnavailable):
        assert retry_store(local, read) == "read"
    assert len(tried) == attempts


@pytest.mark.parametrize("name", ["a::b", "file::x", "a*[b]", "a#b?c", "a%41", "a,b=c"])
def test_a_folder_of_any_name_is_the_store(name: str, tmp_path: Path) -> None:
    """Regression: ``a::b`` wrote into ``a``, because fsspec reads ``::`` as a chain of URLs."""
    for url in (f"{tmp_path}/{name}", f"file://{tmp_path}/{name}"):
        Files(url).write("results/x.json", b"1")
        assert (tmp_path / name / "results" / "x.json").read_bytes() == b"1"
    assert [path.name for path in tmp_path.iterdir()] == [name]
