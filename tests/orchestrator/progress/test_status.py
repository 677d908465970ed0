"""The status file: what other shells see of a run that is running, ended, stopped, dead or silent."""

import json
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from orchestrator.core.events import CellEvent
from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.display import ProgressDisplay
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import Status, StatusFile, last_run, namesake, read_status, set_values, was_raced
from orchestrator.progress.view import status_view, store_view, watch
from orchestrator.store import Store
from orchestrator.store.files import Files
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.helpers.waiting import wait_for
from tests.orchestrator.progress.test_progress import FULL, plain_console, printed_on

COMMAND = "python -m orchestrator grid demo --local"


def file_in(folder: Path, grid: str = "demo") -> tuple[Path, StatusFile]:
    """The path of a grid's status file in a store, and its writer."""
    path = folder / "status" / f"{grid}.json"
    return path, StatusFile(Files(folder), grid, "Demo", COMMAND)


def status_in(folder: Path) -> Status:
    """The status of the grid's last run."""
    found = read_status(Files(folder), "demo")
    assert found is not None
    return found


def printed(view: object) -> str:
    console = plain_console()
    console.print(view)
    return printed_on(console)


def test_a_snapshot_is_read_as_it_was_written(tmp_path: Path) -> None:
    _, file = file_in(tmp_path)
    file.write("running", FULL)
    found = status_in(tmp_path)
    assert found.shot == FULL
    assert (found.grid, found.title, found.command, found.state) == ("demo", "Demo", COMMAND, "running")
    assert TypeAdapter(Snapshot).validate_json(json.dumps(asdict(Snapshot()))) == Snapshot()


ENDLESS = {"shot": {**asdict(Snapshot()), "elapsed": float("inf")}}


DAMAGED = ["", "{", "[]", '{"state": "running"}', '{"format": 0}', '{"format": 1, "at": 0}']


@pytest.mark.parametrize(
    "wrong", [{"at": []}, {"title": ["Demo"]}, {"shot": {"before": None}}, ENDLESS, *DAMAGED], ids=repr
)
def test_a_status_that_is_damaged_or_of_another_format_is_ignored(tmp_path: Path, wrong: Any) -> None:
    """A list where a number belongs was once accepted, and the view failed on it."""
    path, file = file_in(tmp_path)
    file.write("ended", FULL)
    whole = json.loads(path.read_text())
    path.write_text(wrong if isinstance(wrong, str) else json.dumps({**whole, **wrong}))
    assert read_status(Files(tmp_path), "demo") is None


def test_another_shell_sees_the_progress_of_a_run(tmp_path: Path) -> None:
    path, file = file_in(tmp_path)
    assert read_status(Files(tmp_path), "demo") is None
    cells = [samples.cell(1), samples.cell(2)]
    progress = ProgressCounter(cells)
    with ProgressDisplay(progress, file, plain_console()):
        progress.on_event(CellEvent(cells[0], "started"))
        wait_for(lambda: bool((found := read_status(Files(tmp_path), "demo")) and found.shot.running))
        found = status_in(tmp_path)
        assert found.state == "running"
        assert [one.name for one in found.shot.running] == [cells[0].id]
        assert found.shot.waiting == 1
    assert status_in(tmp_path).state == "ended"
    assert [entry.name for entry in path.parent.iterdir()] == ["demo.json"]


@pytest.mark.parametrize(
    ("option", "planned", "raced"),
    [("", False, False), ("", True, True), (" --race", False, True), (" --no-race", True, False)],
)
def test_the_last_run_says_whether_it_was_a_race_and_what_it_left_out(
    tmp_path: Path, option: str, planned: bool, raced: bool
) -> None:
    assert was_raced(last_run(Files(tmp_path), "demo"), planned) == planned
    file = StatusFile(Files(tmp_path), "demo", "Demo", COMMAND + option)
    file.write("ended", Snapshot(race="race: 3 of 4 methods out", left_out=1))
    assert was_raced(last_run(Files(tmp_path), "demo"), planned) == raced
    view = printed(status_view(Store(tmp_path), "demo", "Demo", ["a cell"]))
    assert "race: 3 of 4 methods out" in view
    assert "1 cell: 0 done, 0 to do, 0 failed, 1 left out" in view


@pytest.mark.parametrize(
    ("altered", "by", "state"),
    [({"host": "elsewhere"}, {"at": -5}, "running"), ({"host": "elsewhere"}, {"at": -60}, "silent"),
     ({}, {"started": -3600}, "died"), ({"pid": 2**30}, {}, "died")],
)  # fmt: skip
def test_a_driver_is_judged_by_its_age_or_process(
    tmp_path: Path, altered: dict[str, object], by: dict[str, float], state: str
) -> None:
    """Another process may have the id of a dead driver, but it was started at another time."""
    path, file = file_in(tmp_path)
    file.write("running", FULL)
    body = json.loads(path.read_text())
    path.write_text(json.dumps({**body, **altered, **{name: body[name] + more for name, more in by.items()}}))
    found = status_in(tmp_path)
    assert found.state == state
    assert found.headline(time.time()).endswith(f"continue with: {COMMAND}") == (state == "died")


def test_the_run_of_another_grid_of_the_same_name_is_no_run_of_this_one(tmp_path: Path) -> None:
    """Regression: its ``--set`` chose the cells that ``results`` counted, and ``status`` showed its progress."""
    files, mine, other, copy = Files(tmp_path / "runs"), *(tmp_path / name / "own.yaml" for name in ("a", "b", "c"))
    for path, title in ((mine, "Mine"), (other, "Other"), (copy, "Other")):
        path.parent.mkdir()
        path.write_text(f"title: {title}\n")
    StatusFile(files, str(other), "Other", "python -m orchestrator grid b/own.yaml --race --set shots=1").write(
        "running", FULL
    )
    for same in (other, copy):
        assert set_values(last_run(files, same), None) == ["shots=1"]
        assert was_raced(last_run(files, same), planned=False)
        assert not namesake(last_run(files, same), same)
    assert set_values(last_run(files, mine), None) == []
    assert not was_raced(last_run(files, mine), planned=False)
    assert namesake(read_status(files, "own"), mine) == str(other)
    assert "140/582" not in printed(status_view(Store(tmp_path / "runs"), str(mine), "Mine", []))
    with pytest.raises(UserError, match="never run there"):
        watch(Store(tmp_path / "runs"), str(mine), plain_console())
    other.unlink()  # or the store was moved to another machine
    assert set_values(last_run(files, mine), None) == ["shots=1"]


def test_a_store_lists_its_runs(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert "no grid was run" in printed(store_view(store))
    file_in(tmp_path, "big")[1].write("running", FULL)
    file_in(tmp_path, "small")[1].write("stopped", Snapshot(finished=3, waiting=4))
    (tmp_path / "status" / "building").mkdir()
    first, second = printed(store_view(store)).splitlines()[1:]
    assert first.split()[:6] == ["big", "running", "140/582", "2", "12", "min"]
    assert second.split()[:4] == ["small", "stopped", "3/7", "0"]


def test_the_cells_of_a_grid_are_counted_by_their_ids(tmp_path: Path) -> None:
    """A cell whose worker died runs again, so it is failed and to do."""
    store = Store(str(tmp_path))
    done, own, lost, damaged, untouched = cells = [samples.cell(seed) for seed in range(1, 6)]
    store.write_failure(Failure(own.id, "ValueError: no", "", "the log", 1, ""))
    store.write_failure(Failure(lost.id, "the worker process died", "", "", 3, "", retryable=True))
    store.write_result(samples.result(done))
    store.write_failure(Failure(done.id, "ValueError: of an earlier run", "", "", 1, ""))
    store.files.write(f"results/{damaged.id}.json", b"{")
    shown = printed(status_view(store, "demo", "Demo", [cell.id for cell in cells]))
    for fact in ("demo: Demo", "5 cells: 1 done, 3 to do, 2 failed", damaged.id, own.id, "the log", lost.id):
        assert fact in shown
    assert untouched.id not in shown


@pytest.mark.slow
def test_watching_follows_a_run_to_its_end(tmp_path: Path) -> None:
    _, file = file_in(tmp_path)
    console, cell = plain_console(), samples.cell(1)
    progress = ProgressCounter([cell])
    with ProgressDisplay(progress, file, plain_console()):
        watcher = threading.Thread(target=watch, args=(Store(str(tmp_path)), "demo", console))
        watcher.start()
        progress.on_event(CellEvent(cell, "started"))
        wait_for(lambda: "cells 0/1" in printed_on(console))
        progress.on_event(CellEvent(cell, "finished", seconds=1.0))
    watcher.join()
    lines = printed_on(console).splitlines()
    assert lines[0].startswith("cells 0/1: ")
    assert lines[-2].startswith("ended ")
    assert lines[-1].startswith("cells 1/1: 0 running, 0 waiting")
    assert read_status(Files(tmp_path), "demo") is not None


def test_a_run_that_has_ended_cannot_be_watched(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(UserError, match="it was never run there"):
        watch(store, "demo", plain_console())
    file_in(tmp_path)[1].write("stopped", FULL)
    with pytest.raises(UserError, match="stopped"):
        watch(store, "demo", plain_console())
