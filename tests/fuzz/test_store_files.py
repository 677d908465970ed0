"""Damaged artifacts, snapshots and status files are detected and never cause a traceback."""

import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.progress.snapshot import Failed, InProgress, Snapshot, Stage
from orchestrator.progress.status_file import StatusFile, read_status
from orchestrator.progress.view import store_view
from orchestrator.store import CorruptArtifact, Store
from orchestrator.store.files import Files
from orchestrator.store.snapshots import SNAPSHOT_FILE, Snapshots
from orchestrator.util.errors import UserError
from orchestrator.util.identity import canonical_json
from tests.fuzz.cases import cases, damaged, spoiled
from tests.orchestrator.store.test_store import ADDRESS, IDENTITY, build

CONTENT = b"some numbers"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("artifacts")
    build(Store(folder / "store"), CONTENT)
    return folder


def read_content(store: Store) -> bytes | None:
    """Return the content of the artifact's file; ``None`` if the artifact is refused or missing."""
    try:
        found = store.artifact(ADDRESS, IDENTITY)
        if found is None:
            return None
        found.verify()
        return found.path("numbers.bin").read_bytes()
    except (CorruptArtifact, UserError, KeyError):
        return None


@cases(125)
@given(data=st.data(), as_text=st.booleans())
def test_a_damaged_manifest_never_gives_other_content(whole: Path, data: st.DataObject, as_text: bool) -> None:
    path = whole / "store" / ADDRESS / "manifest.json"
    good = path.read_bytes()
    with suppress(TypeError, ValueError):  # what is no JSON is not written
        changed = data.draw(spoiled(good)) if as_text else json.dumps(data.draw(damaged(json.loads(good)))).encode()
        path.write_bytes(changed)
    try:
        assert read_content(Store(whole / "store")) in (None, CONTENT)
    finally:
        path.write_bytes(good)


STATE: dict[str, Any] = {"step": 3, "weights": [torch.arange(4.0), None], "name": "x", "pair": (1, 2.5)}


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> tuple[Snapshots, Path, bytes]:
    """The snapshots of a folder with one saved snapshot, the path of its file, and the file's content."""
    folder = tmp_path_factory.mktemp("snapshots")
    (folder / ADDRESS).mkdir(parents=True)
    snapshots = Snapshots(Files(folder), ADDRESS, canonical_json(IDENTITY))
    snapshots.save_if_due(lambda: STATE, 0.0)
    path = folder / ADDRESS / SNAPSHOT_FILE
    return snapshots, path, path.read_bytes()


def equals_saved_state(state: Any) -> bool:
    weights = state["weights"][0]
    return torch.equal(weights, STATE["weights"][0]) and {**state, "weights": 0} == {**STATE, "weights": 0}


@cases(100)
@given(data=st.data())
def test_a_damaged_snapshot_is_whole_or_ignored(snapshot: tuple[Snapshots, Path, bytes], data: st.DataObject) -> None:
    snapshots, path, content = snapshot
    assert equals_saved_state(snapshots.load())
    path.write_bytes(data.draw(spoiled(content)))
    state = snapshots.load()
    path.write_bytes(content)
    assert state is None or equals_saved_state(state)


SHOT = Snapshot(
    elapsed=3.5, stages=(Stage("heads", 1, 0, 2),), building=(InProgress("head", 1.0, 2.0, "1 of 2"),), finished=3,
    running=(InProgress("cell", 1.0),), failures=(Failed("cell", "ValueError: no", "/log"),),
)  # fmt: skip


@cases(75)
@given(data=st.data())
def test_a_damaged_status_file_is_read_or_ignored_and_can_be_shown(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "status" / "grid.json"
    StatusFile(Files(tmp_path), "grid", "Grid", "orchestrator grid grid").write("ended", SHOT)
    said = {**json.loads(path.read_text()), "host": "here", "pid": 1, "started": 1.5, "at": 2.5}  # the same every time
    good = json.dumps(said, indent=1).encode()
    if data.draw(st.booleans()):
        path.write_bytes(data.draw(spoiled(good)))
    else:
        with suppress(TypeError, ValueError):
            path.write_text(json.dumps(data.draw(damaged(json.loads(good)))))
    status = read_status(Files(tmp_path), "grid")
    assert status is None or isinstance(status.headline(0.0), str)
    Console(file=io.StringIO()).print(store_view(Store(tmp_path)))
