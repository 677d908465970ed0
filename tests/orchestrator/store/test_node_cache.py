"""The cache of this machine: files are fetched once for all processes, checked, and kept while they are used."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.store import CorruptArtifact, Store
from orchestrator.store.errors import StoreUnavailable
from orchestrator.store.files import FOLDER
from orchestrator.store.node_cache import FETCH_ATTEMPTS, SIZE, ChecksumMismatch, NodeCache, node_cache
from orchestrator.util.errors import UserError
from tests.helpers.waiting import at_once, wait_for
from tests.orchestrator.store.test_store import ADDRESS, IDENTITY, build

ONE, TWO, THREE = (bytes([letter]) * 1000 for letter in b"abc")
PROCESS = """
import hashlib, os, sys, time
from pathlib import Path
from orchestrator.store.node_cache import NodeCache

root, log, content, seconds = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3].encode() * 1000, float(sys.argv[4])

def fetch(part):
    with open(log, "a") as stream:
        stream.write(f"{os.getpid()}\\n")
    part.write_bytes(content[:500])
    time.sleep(seconds)
    part.write_bytes(content)

path = NodeCache(root).get(hashlib.sha256(content).hexdigest(), len(content), fetch)
assert path.read_bytes() == content
print(path, flush=True)
sys.stdin.read()
"""


def process(root: Path, log: Path, letter: str, seconds: float = 0.0) -> subprocess.Popen[str]:
    """Start a process that fetches one content in ``seconds``, and lives until its input ends."""
    words = [sys.executable, "-c", PROCESS, str(root), str(log), letter, str(seconds)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def get(cache: NodeCache, content: bytes, given: list[bytes] | None = None) -> Path:
    """Get ``content`` through a cache. The fetches return the contents ``given`` in turn, and then ``content``."""
    rest = list(given or [])

    def fetch(part: Path) -> None:
        part.write_bytes(rest.pop(0) if rest else content)

    return cache.get(digest_of(content), len(content), fetch)


def unused(part: Path) -> None:
    raise AssertionError("it was fetched again")


def contents(root: Path) -> set[bytes]:
    return {path.read_bytes() for path in root.glob("files/*/*") if path.suffix != ".lock"}


def remove_links(root: Path) -> None:
    """Remove the folders of all processes, as if the processes had ended."""
    shutil.rmtree(root / "processes")
    (root / "processes").mkdir()


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    """Return a list for started processes, which are killed after the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def test_threads_that_ask_at_once_fetch_once(tmp_path: Path) -> None:
    cache, fetched = NodeCache(tmp_path), list[Path]()

    def fetch(part: Path) -> None:
        fetched.append(part)
        part.write_bytes(ONE)

    at_once(4, lambda number: cache.get(digest_of(ONE), len(ONE), fetch))
    assert len(fetched) == 1


@pytest.mark.slow
def test_processes_that_ask_at_once_fetch_once(tmp_path: Path, processes: list[subprocess.Popen[str]]) -> None:
    log = tmp_path / "log"
    processes += [process(tmp_path / "cache", log, "a", seconds=0.5) for _ in range(4)]
    assert all(one.communicate("")[0] for one in processes)
    assert len(log.read_text().split()) == 1


def test_what_a_killed_process_was_fetching_is_fetched(tmp_path: Path, processes: list[subprocess.Popen[str]]) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    processes.append(process(root, log, "a", seconds=60))
    wait_for(lambda: any(part.stat().st_size == 500 for part in root.glob("processes/*/*/*")))
    processes[0].kill()
    processes[0].wait()
    assert get(NodeCache(root), ONE).read_bytes() == ONE
    assert list(root.glob("processes/*/*/*")) == []


@pytest.mark.parametrize("damage", [b"", ONE[:10], ONE[:-1] + b"!"])
def test_a_damaged_download_or_copy_is_fetched_again(tmp_path: Path, damage: bytes) -> None:
    path = get(NodeCache(tmp_path), ONE, [damage])
    assert path.read_bytes() == ONE
    assert NodeCache(tmp_path).get(digest_of(ONE), len(ONE), unused).samefile(path)
    path.chmod(0o644)
    path.write_bytes(damage)
    assert get(NodeCache(tmp_path), ONE).read_bytes() == ONE


def test_what_is_wrong_every_time_is_wrong_in_the_store_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ChecksumMismatch):
        get(NodeCache(tmp_path), ONE, [TWO] * FETCH_ATTEMPTS)
    assert contents(tmp_path) == set()
    assert list(tmp_path.glob("processes/*/*/*")) == []


def test_the_longest_unused_makes_room(tmp_path: Path) -> None:
    for age, content in ((200, ONE), (300, TWO), (100, THREE)):
        path = get(NodeCache(tmp_path), content)
        os.utime(path, (time.time() - age, path.stat().st_mtime))
    remove_links(tmp_path)
    get(NodeCache(tmp_path, limit=3000), b"d" * 1000)
    assert contents(tmp_path) == {ONE, THREE, b"d" * 1000}


def test_what_a_living_process_was_given_stays(tmp_path: Path, processes: list[subprocess.Popen[str]]) -> None:
    root = tmp_path / "cache"
    processes.append(process(root, tmp_path / "log", "a"))
    stdout = processes[0].stdout
    assert Path(stdout.readline().strip()).read_bytes() == ONE
    get(NodeCache(root, limit=1000), TWO)  # the cache exceeds its limit, because a file in use must stay
    assert contents(root) == {ONE, TWO}
    processes[0].communicate("")
    get(NodeCache(root, limit=2000), THREE)
    assert ONE not in contents(root)


def test_a_file_is_fetched_once_where_a_file_has_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*names: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    cache = NodeCache(tmp_path)
    assert get(cache, ONE).read_bytes() == ONE
    assert cache.get(digest_of(ONE), len(ONE), unused).read_bytes() == ONE


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "small", str(folder)], capture_output=True)
    if made.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_makes_room_and_says_so_when_it_cannot(small_disk: Path) -> None:
    large, larger = b"l" * 36_000, b"m" * 40_000
    first = get(NodeCache(small_disk), large)
    remove_links(small_disk)
    cache = NodeCache(small_disk)
    second = get(cache, larger)
    assert second.read_bytes() == larger
    assert not first.exists()
    with pytest.raises(StoreUnavailable, match=f"{small_disk}: this machine's cache .* the disk is full") as caught:
        get(cache, large)
    assert "BOLT_CACHE" in str(caught.value)
    assert contents(small_disk) == {larger}
    assert list(small_disk.glob("processes/*/*/*")) == []


def test_a_store_on_a_full_disk_says_where(small_disk: Path) -> None:
    store = Store(small_disk / "runs")
    with pytest.raises(UserError, match=f"{small_disk}/runs: .* cannot be built: the disk is full"):
        build(store, bytes(100_000))
    with pytest.raises(StoreUnavailable, match="the disk is full"):
        store.files.write("results/a.json", bytes(100_000))
    assert [path for path in small_disk.rglob("*") if path.is_file()] == []


def test_a_shared_folder_is_read_through_a_named_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "shared")
    build(store, ONE)
    found = store.artifact(ADDRESS, IDENTITY)
    assert found.path("numbers.bin").is_relative_to(tmp_path / "shared")
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    path = found.path("numbers.bin")
    assert path.is_relative_to(tmp_path / "cache")
    assert path.read_bytes() == ONE
    monkeypatch.setenv(SIZE, "much")
    with pytest.raises(UserError, match=f"{SIZE}: 'much' is not a size"):
        node_cache()


@pytest.mark.parametrize("damage", [None, TWO])
def test_a_changed_artifact_is_unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "cache"))
    store = Store(tmp_path / "shared")
    build(store, ONE)
    found = store.artifact(ADDRESS)
    stored = tmp_path / "shared" / found.files["numbers.bin"][0]
    stored.write_bytes(damage) if damage else stored.unlink()
    with pytest.raises(CorruptArtifact, match=r"numbers\.bin"):
        found.path("numbers.bin")
    assert store.artifact(ADDRESS) is None
