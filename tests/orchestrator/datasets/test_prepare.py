"""``data prepare`` leaves a complete dataset or none, whatever interrupts it."""

import gzip
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torchvision.datasets
from rich.console import Console

from orchestrator.catalog import DatasetEntry, load_catalog, missing_data
from orchestrator.datasets.opening import open_dataset
from orchestrator.datasets.prepare import FetchJob, check_space, plan_preparation, prepare_one
from orchestrator.datasets.state import read_record, state_of
from orchestrator.util.errors import UserError
from tests.helpers import formats
from tests.helpers.file_server import FileServer, serve
from tests.helpers.small_archives import BODY, CONTENT, entry_of, picture, tar_of, zip_of
from tests.helpers.waiting import TIMEOUT, at_once, wait_for
from tests.helpers.warm_process import forked, run_forked

QUIET = Console(file=io.StringIO())


def check_complete(entry: DatasetEntry, root: Path) -> None:
    """Check that the dataset can be opened and read, and that no temporary files are left."""
    assert state_of(entry, root) == "there"
    raw = open_dataset(entry, root)
    assert (len(raw.train), len(raw.test)) == (8, 2)
    assert raw.train.read(0).size == (40, 40)
    assert [path.name for path in root.iterdir() if not path.name.startswith(".")] == ["pets"]


def check_missing(entry: DatasetEntry, root: Path) -> None:
    """Check that no command takes the files for a complete dataset."""
    assert not (root / "pets").exists()
    assert state_of(entry, root) in ("partial", "missing")
    with pytest.raises(UserError, match="data prepare pets"):
        open_dataset(entry, root)


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_an_archive_becomes_a_dataset_with_a_record(tmp_path: Path, pack: Any) -> None:
    body = pack(CONTENT)
    with serve(files={"pets.archive": body}) as server:
        entry = entry_of(server.url_of("pets.archive"), body, sizes={"train": 80, "test": 2})
        assert plan_preparation([entry], tmp_path)[1] == [FetchJob(entry, len(body), 0)]
        record = prepare_one(entry, tmp_path, QUIET)
        assert prepare_one(entry, tmp_path, QUIET) is None
        assert server.sent == [len(body)]
    assert record == read_record(entry, tmp_path)
    assert record.files == {"pets.archive": f"sha256:{hashlib.sha256(body).hexdigest()}"}
    assert record.manifest.counts == {"train": 8, "test": 2}
    assert record.differs == ("train: catalog 80, data 8",)
    (tmp_path / "pets.partial" / "downloads").mkdir(parents=True)  # removed beside a complete dataset
    (line,), _, _ = plan_preparation([entry], tmp_path)
    assert "pets is there" in line
    check_complete(entry, tmp_path)


BAD: dict[str, tuple[bytes, bytes | None, str]] = {
    "a wrong checksum": (BODY, b"another", "has the wrong sha256"),
    "a truncated archive": (BODY[: len(BODY) // 2], None, "damaged, truncated or no archive"),
    "a path that leaves its folder": (tar_of({**CONTENT, "../evil.png": b"x"}), None, "is refused"),
    "a zip whose path leaves its folder": (zip_of({**CONTENT, "../evil.png": b"x"}), None, "is refused"),
    "no class folders": (tar_of({"readme.txt": b"x"}), None, "cannot be read as pets"),
    "one class": (tar_of({"pets/cat/1.png": picture(1), "pets/cat/2.png": picture(2)}), None, "cannot be read as pets"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_archive_leaves_no_dataset(tmp_path: Path, case: str) -> None:
    body, stated, message = BAD[case]
    root = tmp_path / "root"
    with serve(files={"a.tar": body}) as server:
        entry = entry_of(server.url_of("a.tar"), stated)
        for _ in range(2):  # the second attempt meets what the first one left
            with pytest.raises(UserError, match=message):
                prepare_one(entry, root, QUIET)
            check_missing(entry, root)
    assert not list(tmp_path.rglob("evil.png"))


def test_a_partly_unpacked_archive_is_unpacked_again_without_fetching(tmp_path: Path) -> None:
    with serve(files={"a.tar": BODY}) as server:
        entry = entry_of(server.url_of("a.tar"))
        half = tmp_path / "pets.partial" / "pets" / "pets" / "cat"
        half.mkdir(parents=True)
        (half / "left-over.png").write_bytes(picture(0)[:50])
        (tmp_path / "pets.partial" / "downloads").mkdir()
        (tmp_path / "pets.partial" / "downloads" / "a.tar").write_bytes(BODY)
        check_missing(entry, tmp_path)
        prepare_one(entry, tmp_path, QUIET)
        assert server.requests == []
    check_complete(entry, tmp_path)


def prepare_command(folder: Path, entry: DatasetEntry, *more: str) -> list[str]:
    fields = entry.model_dump(exclude={"name"}, exclude_defaults=True)
    catalog = {"domains": {"own": {"title": "Own"}}, "datasets": {entry.name: fields}}
    (folder / "mine.yaml").write_text(json.dumps(catalog))
    words = ["data", "prepare", entry.name, "--catalog", str(folder / "mine.yaml"), "--data-root"]
    return [*words, str(folder / "root"), *more]


def wait_until(reached: Callable[[], bool], process: BaseProcess) -> None:
    wait_for(lambda: reached() or process.exitcode is not None)
    assert process.exitcode is None, "the command ended before"


@pytest.mark.e2e
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_killed_command_is_resumed_without_repeating_bytes(tmp_path: Path, how: signal.Signals) -> None:
    root, half = tmp_path / "root", len(BODY) // 2
    with serve(files={"a.tar": BODY}, stalls=[half]) as server:
        entry = entry_of(server.url_of("a.tar"))
        command = prepare_command(tmp_path, entry, "--yes")
        with forked(command) as process:
            wait_until(lambda: server.sent == [half], process)
            time.sleep(0.2)  # the bytes are on their way
            os.kill(process.pid or 0, how)
            process.join(TIMEOUT)
        check_missing(entry, root)
        part = root / "pets.partial" / "downloads" / "a.tar.part"
        kept = part.stat().st_size if part.exists() else 0
        done = run_forked(command)
        assert done.returncode == 0, done.stderr
        assert server.sent == [half, len(BODY) - kept]
    assert "2 classes, 8 train, 2 test" in done.stdout
    check_complete(entry, root)


@pytest.mark.e2e
def test_a_second_command_names_the_running_process(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with serve(files={"a.tar": BODY}, stalls=[100]) as server:
        entry = entry_of(server.url_of("a.tar"))
        command = prepare_command(tmp_path, entry, "--yes")
        with forked(command) as first:
            wait_until(lambda: server.sent == [100], first)
            second = run_forked(command)
        assert second.returncode == 2
        assert f"pets is being prepared in {root} by process {first.pid}" in second.stdout + second.stderr
        prepare_one(entry, root, QUIET)  # the lock died with its process
    check_complete(entry, root)


def test_two_concurrent_threads_leave_one_complete_dataset(tmp_path: Path) -> None:
    def build(number: int) -> object:
        try:
            return prepare_one(entry, tmp_path, QUIET)
        except UserError as error:
            return error

    with serve(files={"a.tar": BODY}) as server:
        entry = entry_of(server.url_of("a.tar"))
        outcomes = at_once(4, build)
        assert server.sent == [len(BODY)]
    check_complete(entry, tmp_path)
    assert all(outcome is None or "is being prepared" in str(outcome) or outcome == read_record(entry, tmp_path)
               for outcome in outcomes)  # fmt: skip


CHILD = """
import io, os, resource, sys
from pathlib import Path
from rich.console import Console
from orchestrator.datasets.prepare import prepare_one
from orchestrator.util.errors import UserError
from tests.helpers.small_archives import entry_of

if sys.argv[3] == "limited":
    resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))
if sys.argv[3] == "locked" and os.geteuid() == 0:
    os.setuid(65534)
try:
    prepare_one(entry_of(sys.argv[1]), Path(sys.argv[2]), Console(file=io.StringIO()))
except UserError as error:
    print(error)
"""


@pytest.mark.parametrize(("option", "expected"), [("size=32k", "the disk is full"), ("ro", "the disk is read-only")])
def test_a_small_disk_that_is_full_or_read_only_is_named(tmp_path: Path, option: str, expected: str) -> None:
    script = f'mount -t tmpfs -o {option} none {tmp_path} && echo mounted && "$@"'
    with serve(files={"a.tar": BODY}) as server:
        child = [sys.executable, "-c", CHILD, server.url_of("a.tar"), str(tmp_path), "mounted"]
        command = ["sh", "-c", 'unshare -rm sh -c "$@"', "sh", script, "sh", *child]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    if not done.stdout.startswith("mounted"):
        pytest.skip(f"this user may not mount a disk: {done.stderr.strip()}")
    assert f"pets cannot be prepared: {expected}" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("how", "expected"),
    [("limited", "the disk does not support"), ("locked", "this folder may not be written to")],
)
def test_a_full_or_read_only_disk_is_reported_and_leaves_no_dataset(tmp_path: Path, how: str, expected: str) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o555 if how == "locked" else 0o755)
    with serve(files={"a.tar": BODY}) as server:
        done = run_forked([server.url_of("a.tar"), str(root), how], CHILD)
        assert done.returncode == 0, done.stderr
        assert f"pets cannot be prepared: {expected}" in done.stdout
        root.chmod(0o755)
        entry = entry_of(server.url_of("a.tar"))
        check_missing(entry, root)
        prepare_one(entry, root, QUIET)
    check_complete(entry, root)


def test_a_download_that_cannot_fit_or_has_no_folder_is_not_begun(tmp_path: Path) -> None:
    entry = entry_of("http://127.0.0.1:1/a.tar")
    with pytest.raises(UserError, match=r"TiB of disk needed, and .* are free"):
        check_space([FetchJob(entry, 10**16, 0)], tmp_path)
    assert check_space([FetchJob(entry, None, 0)], tmp_path).startswith("disk needed: not known, ")
    (tmp_path / "root").write_text("a file, where a folder is meant")
    with pytest.raises(UserError, match="this is not a folder"):
        prepare_one(entry, tmp_path / "root", QUIET)


@pytest.mark.e2e
def test_nothing_is_fetched_without_agreement(tmp_path: Path) -> None:
    with serve(files={"a.tar": BODY}) as server:
        command = prepare_command(tmp_path, entry_of(server.url_of("a.tar")))
        done = run_forked(command)
        assert server.requests == []
    assert done.returncode == 2
    assert "licence: CC0" in done.stdout
    assert "--yes" in done.stderr


def mnist_files(folder: Path) -> dict[str, bytes]:
    """Return small compressed files in MNIST's format."""
    formats.write(load_catalog().datasets["mnist"], folder)
    files = sorted((folder / "MNIST" / "raw").iterdir())
    return {f"{path.name}.gz": gzip.compress(path.read_bytes(), 0, mtime=0) for path in files}


def mnist(server: FileServer, monkeypatch: pytest.MonkeyPatch) -> DatasetEntry:
    """Return the catalog's MNIST, with the addresses and checksums of the server's files."""
    sums = [(name, hashlib.md5(body).hexdigest()) for name, body in server.files.items()]
    monkeypatch.setattr(torchvision.datasets.MNIST, "mirrors", [f"{server.url}/"])
    monkeypatch.setattr(torchvision.datasets.MNIST, "resources", sums)
    return load_catalog().datasets["mnist"]


def test_torchvision_resumes_and_keeps_complete_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.datasets.fetching.download.PAUSES", (0.0,))
    root = tmp_path / "root"
    with serve(files=mnist_files(tmp_path / "files")) as server:
        entry = mnist(server, monkeypatch)
        sizes = [len(body) for body in server.files.values()]
        server.drops = [sizes[0], sizes[1], 1000, 0, 0]
        with pytest.raises(UserError, match=r"mnist cannot be fetched by torchvision"):
            prepare_one(entry, root, QUIET)
        assert missing_data(entry, root) is not None
        assert state_of(entry, root) == "partial"
        server.drops = []
        record = prepare_one(entry, root, QUIET)
        assert sum(server.sent) == sum(sizes)
    assert record.manifest.counts == {"train": 30, "test": 20}
    assert len(record.files) == 4
    assert open_dataset(entry, root).test.read(3).size == (28, 28)


def test_a_torchvision_file_with_a_wrong_checksum_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(files=mnist_files(tmp_path / "files")) as server:
        entry = mnist(server, monkeypatch)
        name = next(iter(server.files))
        good, server.files[name] = server.files[name], gzip.compress(b"another")
        with pytest.raises(UserError, match="has the wrong checksum"):
            prepare_one(entry, tmp_path, QUIET)
        assert list((tmp_path / "mnist.partial" / "downloads").glob("*.wrong"))
        server.files[name] = good
        assert prepare_one(entry, tmp_path, QUIET) is not None


def test_a_gated_dataset_and_one_to_fetch_by_hand_get_instructions(tmp_path: Path) -> None:
    with pytest.raises(UserError) as failed:
        prepare_one(load_catalog().datasets["imagenet"], tmp_path, QUIET)
    text = str(failed.value)
    assert "imagenet is gated: ILSVRC2012_img_train.tar, ILSVRC2012_img_val.tar, ILSVRC2012_devkit_t12.tar.gz" in text
    assert str(tmp_path / "imagenet.partial" / "downloads") in text
    assert "image-net.org" in text
    entry = load_catalog().datasets["rsscn7"]
    assert plan_preparation([entry], tmp_path) == ([], [], [entry])
    assert "by hand, into" in str(missing_data(entry, tmp_path))
