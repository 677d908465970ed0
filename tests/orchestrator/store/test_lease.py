"""Only one driver runs a grid: leases, killed drivers, and drivers on other machines."""

import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.store import lease as leases
from orchestrator.store.errors import StoreUnavailable
from orchestrator.store.files import Files
from orchestrator.store.lease import Owner, grid_lease
from orchestrator.util.errors import UserError
from tests.helpers.waiting import TIMEOUT, at_once, wait_for

NAME = "locks/demo.lease"
DRIVER = """
import sys, time
from orchestrator.store.lease import grid_lease
from orchestrator.store.files import Files
with grid_lease(Files(sys.argv[1]), "demo", lambda line: print(line, flush=True)):
    print("driving", flush=True)
    sys.stdin.read()
"""


def driver(url: Path | str) -> subprocess.Popen[str]:
    """Start a process that holds the lease until its input ends."""
    words = [sys.executable, "-c", DRIVER, str(url)]
    started = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "driving\n"
    return started


def elsewhere(files: Files, **changes: object) -> dict[str, object]:
    """Leave the lease of a driver on another machine."""
    here = Owner()
    body = {"host": "elsewhere", "machine": "another", "pid": 7, "started": here.started, "token": "theirs"}
    body |= {"renewed": time.time(), **changes}
    files.write(NAME, json.dumps(body).encode())
    return body


@pytest.mark.skipif(not psutil.LINUX, reason="only Linux counts the time of a start from the boot")
@pytest.mark.parametrize("earlier", [False, True], ids=["", "written by an earlier version"])
def test_a_driver_lives_on_if_the_clock_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, earlier: bool) -> None:
    """The other driver took it for dead, and both ran the grid."""
    owner = Owner(started=psutil.Process().create_time()) if earlier else Owner()
    assert not owner.is_gone()
    (tmp_path / str(owner.pid)).mkdir()
    shutil.copy(f"/proc/{owner.pid}/stat", tmp_path / str(owner.pid))
    for later in (0, 3600):
        (tmp_path / "stat").write_text(f"btime {psutil.boot_time() + later:.0f}\n")
        with monkeypatch.context() as patch:
            patch.setattr(psutil, "PROCFS_PATH", str(tmp_path))
            assert owner.is_gone() == (earlier and later > 0)


def check_one_driver(store: Path | str) -> None:
    """Check that a second driver is turned away, and that a killed one is not waited for."""
    first, said = driver(store), list[str]()
    with pytest.raises(UserError, match=f"process {first.pid} on .* grid demo"):
        grid_lease(Files(store), "demo").__enter__()
    with grid_lease(Files(store), "another"):
        pass
    first.kill()
    first.communicate()
    with grid_lease(Files(store), "demo", said.append):
        assert Files(store).exists(NAME)
    assert len(said) == 1
    assert f"process {first.pid} on " in said[0]
    assert not Files(store).exists(NAME)


def check_one_of_several_gets_it(store: str | Path, many: int) -> None:
    """Take one lease from many threads at once."""
    end = threading.Barrier(many)

    def take(number: int) -> str:
        said = ""
        try:
            with grid_lease(Files(store), "demo"):
                end.wait(TIMEOUT)
        except UserError as error:
            said = str(error)
            end.wait(TIMEOUT)
        return said

    assert at_once(many, take).count("") == 1


def test_a_folder_has_one_driver_at_a_time(tmp_path: Path) -> None:
    check_one_driver(tmp_path)
    check_one_of_several_gets_it(tmp_path, 4)


def test_a_driver_elsewhere_that_renews_its_lease_is_at_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.02)
    elsewhere(Files(tmp_path))
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.1):
            elsewhere(Files(tmp_path))

    thread = threading.Thread(target=renew)
    thread.start()
    said: list[str] = []
    with pytest.raises(UserError, match="process 7 on elsewhere"):
        grid_lease(Files(tmp_path), "demo", said.append).__enter__()
    ended.set()
    thread.join()
    assert "process 7 on elsewhere" in said[0]


@pytest.mark.parametrize("ago", [0.0, -3600.0, 1e9], ids=["silent from now on", "its clock is ahead", "long ago"])
def test_a_silent_driver_elsewhere_is_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ago: float) -> None:
    monkeypatch.setattr(leases, "STALE_SECONDS", 0.5)
    monkeypatch.setattr(leases, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(leases, "SETTLE_SECONDS", 0.0)
    elsewhere(Files(tmp_path), renewed=time.time() - ago)
    said: list[str] = []
    with grid_lease(Files(tmp_path), "demo", said.append):
        pass
    assert "demo: taking over from process 7 on elsewhere" in said[-1]


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"host": 1}', b"\xff"])
def test_a_lease_that_is_none_is_taken(tmp_path: Path, text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "SETTLE_SECONDS", 0.0)
    Files(tmp_path).write(NAME, text)
    with grid_lease(Files(tmp_path), "demo"):
        pass


def test_a_lease_is_renewed_and_its_loss_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "RENEW_SECONDS", 0.02)
    files, said = Files(tmp_path), list[str]()

    def renewed() -> float:
        return float(json.loads(files.read(NAME))["renewed"])

    with grid_lease(Files(tmp_path), "demo", said.append):
        first = renewed()
        wait_for(lambda: renewed() != first)
        theirs = elsewhere(files)

        def noticed() -> bool:
            if not said:
                files.write(NAME, json.dumps(theirs).encode())  # the driver may have overwritten it meanwhile
            return bool(said)

        wait_for(noticed)
    assert "process 7 on elsewhere has taken over this grid" in said[0]
    assert json.loads(files.read(NAME)) == theirs


def test_a_signal_leaves_no_lease_as_soon_as_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a grid that was stopped at that moment left its lease."""
    created = Files.create

    def create(files: Files, name: str, content: bytes) -> bool:
        written = created(files, name, content)
        signal.raise_signal(signal.SIGINT)
        return written

    monkeypatch.setattr(Files, "create", create)
    with pytest.raises(KeyboardInterrupt):
        grid_lease(Files(tmp_path), "demo").__enter__()
    assert not Files(tmp_path).exists(NAME)


def test_a_store_that_cannot_be_written_to_is_said_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnavailable, match=r"demo\.lease: the store cannot be used: a part of this path is a file"):
        grid_lease(Files(tmp_path / "file"), "demo").__enter__()
