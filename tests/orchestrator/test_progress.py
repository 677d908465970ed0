"""What the terminal and other shells are told, and the arithmetic of the estimate."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from orchestrator.eta import Durations, Kind, eta_seconds, in_words, kind_of
from orchestrator.events import CellEvent
from orchestrator.graph import TaskEvent
from orchestrator.progress import Progress, read_status
from tests.orchestrator import samples

BOLT: Kind = ("tiny", "bolt", 4)
PROBE: Kind = ("tiny", "linear_probe", 4)


def measured(*pairs: tuple[Kind, float]) -> Durations:
    durations = Durations()
    for kind, seconds in pairs:
        durations.add(kind, seconds)
    return durations


def test_a_duration_comes_from_the_closest_relative() -> None:
    durations = measured((BOLT, 10.0), (BOLT, 20.0), (("tiny", "bolt", 16), 60.0), (PROBE, 2.0))
    assert durations.expected(BOLT) == 15.0
    assert durations.expected(("tiny", "bolt", 1)) == 30.0  # the method on this backbone
    assert durations.expected(("large", "bolt", 1)) == 30.0  # the method anywhere
    assert durations.expected(("large", "lora", 1)) == 23.0  # anything
    assert Durations().expected(BOLT) is None


def test_the_estimate_is_work_over_pace_but_never_less_than_the_longest_cell() -> None:
    durations = measured((BOLT, 10.0), (PROBE, 2.0))
    waiting = {BOLT: 3, PROBE: 5}
    running = [(BOLT, 4.0), (PROBE, 9.0)]  # 6 s to go, and one that is overdue
    assert eta_seconds(waiting, running, durations, pace=2.0) == (3 * 10 + 5 * 2 + 6) / 2
    assert eta_seconds({}, running, durations, pace=2.0) == 6.0
    assert eta_seconds({}, [], durations, pace=2.0) == 0.0


@pytest.mark.parametrize("pace", [0.0, -1.0])
def test_without_a_pace_there_is_no_estimate(pace: float) -> None:
    assert eta_seconds({BOLT: 1}, [], measured((BOLT, 1.0)), pace=pace) is None


def test_before_anything_was_measured_there_is_no_estimate() -> None:
    assert eta_seconds({BOLT: 1}, [], Durations(), pace=1.0) is None
    assert eta_seconds({}, [(BOLT, 1.0)], Durations(), pace=1.0) is None


@given(
    counts=st.dictionaries(st.sampled_from([BOLT, PROBE]), st.integers(0, 10**5)),
    pace=st.floats(0.01, 1000),
    more=st.integers(1, 100),
)
def test_more_work_never_takes_less_time(counts: dict[Kind, int], pace: float, more: int) -> None:
    durations = measured((BOLT, 10.0), (PROBE, 2.0))
    before = eta_seconds(counts, [], durations, pace=pace)
    after = eta_seconds({**counts, BOLT: counts.get(BOLT, 0) + more}, [], durations, pace=pace)
    assert before is not None
    assert after is not None
    assert after > before >= 0


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, "unknown"),
        (0.2, "0 s"),
        (99.4, "99 s"),
        (99.6, "2 min"),
        (3570.0, "1 h 00 min"),
        (11100.0, "3 h 05 min"),
        (187200.0, "2 d 4 h"),
    ],
)
def test_durations_in_words(seconds: float | None, words: str) -> None:
    assert in_words(seconds) == words


def quiet() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_counts_follow_the_events_and_a_second_attempt_counts_once() -> None:
    cells = [samples.cell(number) for number in range(5)]
    progress = Progress(cells, ["images/a", "features/b", "spectra/c"], console=quiet())
    progress.on_task(TaskEvent("images/a", "started"))
    progress.on_task(TaskEvent("images/a", "finished"))
    progress.on_task(TaskEvent("features/b", "started"))
    progress.on_task(TaskEvent("features/b", "failed", error="OSError: disk", log="/logs/b"))
    progress.on_task(TaskEvent("spectra/c", "skipped"))
    progress.on_event(CellEvent(cells[0], "started"))
    progress.on_event(CellEvent(cells[0], "started", attempt=2))
    progress.on_event(CellEvent(cells[0], "finished", seconds=2.0))
    progress.on_event(CellEvent(cells[1], "started"))
    progress.on_event(CellEvent(cells[2], "failed", error="needs features/b", log="/logs/2"))  # never started
    shot = progress.snapshot()
    assert (shot.built, shot.artifacts) == (1, 3)
    assert (shot.finished, shot.failed, shot.running, shot.waiting) == (1, 1, 1, 2)
    assert shot.failures == (("features/b", "OSError: disk", "/logs/b"), (cells[2].id, "needs features/b", "/logs/2"))
    assert shot.eta == pytest.approx(3 * 2.0, abs=0.5)
    assert shot.line.startswith("artifacts 1/3, cells 1/5: 1 running, 2 waiting, 1 failed, ")
    assert shot.line.endswith(", about 6 s left")


def test_earlier_runs_give_an_estimate_from_the_start() -> None:
    earlier = [samples.result(samples.cell(seed)) for seed in (1, 2)]  # 2.4 s each
    progress = Progress([samples.cell(seed) for seed in range(10)], measured=earlier, places=2, console=quiet())
    assert progress.snapshot().eta == pytest.approx(10 * 2.4 / 2)


def test_without_a_terminal_it_says_plain_lines_and_a_last_one(tmp_path: Path) -> None:
    console, cells = quiet(), [samples.cell(number) for number in range(2)]
    with Progress(cells, console=console) as progress:
        for cell in cells:
            progress.on_event(CellEvent(cell, "started"))
            progress.on_event(CellEvent(cell, "finished", seconds=1.0))
        time.sleep(0.7)
    lines = said(console).splitlines()
    assert lines[0].startswith("cells 2/2: 0 running, 0 waiting, ")
    assert lines[-1].startswith("2 cells finished in ")
    assert len(lines) == 2
    assert "\x1b" not in said(console)


def test_a_terminal_sees_the_running_cells_and_the_last_failures() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    cells = [samples.cell(number) for number in range(12)]
    with Progress(cells, ["images/a"], console=console) as progress:
        for cell in cells[:9]:
            progress.on_event(CellEvent(cell, "started"))
        progress.on_event(CellEvent(cells[0], "failed", error="ValueError: odd", log="/logs/0.err"))
        time.sleep(0.6)
    text = said(console)
    assert "8 running, 3 waiting, 1 failed" in text
    assert "and 2 more" in text
    assert "ValueError: odd" in text
    assert "/logs/0.err" in text


def test_an_interrupted_run_says_how_to_go_on(tmp_path: Path) -> None:
    console = quiet()
    with pytest.raises(KeyboardInterrupt), Progress([samples.cell()], console=console, status=tmp_path / "s.json"):
        raise KeyboardInterrupt
    assert "stopped: 0 cells finished, 1 not done" in said(console)
    assert "the same command goes on from here" in said(console)
    assert read_status(tmp_path / "s.json") is None


def test_another_shell_can_read_how_far_it_is(tmp_path: Path) -> None:
    path = tmp_path / "status" / "demo.json"
    assert read_status(path) is None
    with Progress([samples.cell(1), samples.cell(2)], console=quiet(), status=path) as progress:
        progress.on_event(CellEvent(samples.cell(1), "started"))
        deadline = time.monotonic() + 10
        while "1 running" not in (read_status(path) or "") and time.monotonic() < deadline:
            time.sleep(0.05)
        line = read_status(path)
        assert line is not None
        assert "cells 0/2: 1 running, 1 waiting" in line
        body = json.loads(path.read_text())
        assert body["now"] == [samples.cell(1).id]
    assert read_status(path) is None
    assert [entry.name for entry in path.parent.iterdir()] == ["demo.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "running"}', '{"state": "running", "at": 0, "line": "x"}'])
def test_a_status_file_that_is_broken_or_old_is_no_status(tmp_path: Path, text: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(text)
    assert read_status(path) is None
    assert read_status(None) is None


def test_a_status_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with Progress([], console=quiet(), status=blocked / "status.json"):
        pass


def test_events_from_many_threads_are_all_counted() -> None:
    cells = [samples.cell(number) for number in range(400)]
    progress = Progress(cells, console=quiet())

    def work(part: int) -> None:
        for cell in cells[part::8]:
            progress.on_event(CellEvent(cell, "started"))
            progress.on_event(CellEvent(cell, "finished", seconds=0.1))
            progress.snapshot()

    threads = [threading.Thread(target=work, args=(part,)) for part in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shot = progress.snapshot()
    assert (shot.finished, shot.running, shot.waiting) == (400, 0, 0)


def test_kinds_tell_backbone_method_and_shots_apart() -> None:
    assert kind_of(samples.cell(3, method="lora", shots=16, backbone="ViT-B-32")) == ("ViT-B-32", "lora", 16)
