"""Counts of a run, and how they are shown on a terminal and without one."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.planning.cost import CostModel
from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.display import STOPPING, ProgressDisplay
from orchestrator.progress.snapshot import Failed, InProgress, Snapshot, Stage
from orchestrator.progress.status_file import StatusFile, read_status
from orchestrator.progress.view import LiveView
from orchestrator.store.files import Files
from orchestrator.util.machine import Gpu, Memory, parse_nvidia_smi, process_tree_memory
from tests.helpers import cells as samples
from tests.helpers.waiting import at_once, wait_for


def plain_console() -> Console:
    """A console that is no terminal and keeps what it prints."""
    return Console(file=io.StringIO(), width=100, force_terminal=False)


def printed_on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_events_are_counted_and_a_second_attempt_counts_once() -> None:
    cells = [samples.cell(number) for number in range(5)]
    stages = {"images/a": 0.0, "features/b": 10.0, "spectra/c": 0.0}
    logs = {"features/b": "/store/logs/b.log"}
    progress = ProgressCounter(cells, stages, clock=lambda: 0.0, log_of=lambda name: logs.get(name, ""))
    for event in (
        TaskEvent("images/a", "started"), TaskEvent("images/a", "finished"), TaskEvent("features/b", "started"),
        TaskEvent("features/b", "failed", error="OSError: disk", log="/logs/b"), TaskEvent("spectra/c", "skipped"),
        CellEvent(cells[0], "started"), CellEvent(cells[0], "started", attempt=2),
        CellEvent(cells[0], "finished", seconds=2.0), CellEvent(cells[1], "started"),
        CellEvent(cells[2], "failed", error="needs features/b", log="/logs/2"),  # never started
    ):  # fmt: skip
        progress.on_event(event)
    shot = progress.snapshot()
    assert shot.stages == (Stage("images", 1, 0, 1), Stage("features", 0, 1, 1), Stage("spectra", 0, 1, 1))
    assert (shot.finished, shot.failed, len(shot.running), shot.waiting) == (1, 1, 1, 2)
    assert shot.running == (InProgress(cells[1].id, 0.0, expected=2.0),)
    assert shot.failures == (
        Failed("features/b", "OSError: disk", "/store/logs/b.log"),  # not the worker's log, which is removed
        Failed(cells[2].id, "needs features/b", "/logs/2"),
    )
    assert shot.eta == 3 * 2.0
    assert shot.line == "cells 1/5: 1 running, 2 waiting, 1 failed, about 6 s left"
    # Results of earlier runs count as done and give an estimate at once.
    costs = CostModel(done=[samples.result(samples.cell(seed)) for seed in (1, 2)])  # 2.4 s each
    later = ProgressCounter([samples.cell(seed) for seed in range(3, 13)], costs=costs, finished_before=2, slots=2)
    assert later.snapshot().eta == pytest.approx(10 / 2 * 2.4)
    assert later.snapshot().line == "cells 2/12: 0 running, 10 waiting, about 12 s left"


def test_artifacts_are_part_of_the_estimate_and_report_their_progress() -> None:
    now = 0.0
    told = {"sources/b": "3 of 4"}
    progress = ProgressCounter(
        [], {"sources/a": 10.0, "sources/b": 20.0, "sources/c": 20.0}, gflops=1.0,
        build_progress=lambda address: told.get(address, ""), clock=lambda: now,
    )  # fmt: skip
    assert progress.snapshot().eta == 50.0
    assert not progress.snapshot().has_estimate  # the assumed speed has been wrong by a factor of ten
    assert "50 s" not in progress.snapshot().line
    progress.on_event(TaskEvent("sources/a", "started"))
    now = 2.0
    progress.on_event(TaskEvent("sources/a", "finished", seconds=2.0))
    progress.on_event(TaskEvent("sources/b", "started"))
    now = 5.0
    progress.read_build_progress()
    shot = progress.snapshot()
    assert shot.eta == pytest.approx(1.0 + 4.0)  # a quarter of the second, and the third by its size
    assert shot.line == "artifacts 1/3, sources/b: 3 of 4, cells 0/0: 0 running, 0 waiting, about 5 s left"


def test_measured_artifacts_are_no_estimate_of_cells() -> None:
    """Ten seconds were once announced while artifacts were built, and the cells then took two minutes."""
    progress = ProgressCounter([samples.cell(1), samples.cell(2)], {"images/a": 1.0, "images/b": 1.0})
    for name in ("images/a", "images/b"):
        progress.on_event(TaskEvent(name, "started"))
        progress.on_event(TaskEvent(name, "finished", seconds=2.0))
        assert not progress.snapshot().has_estimate
    progress.on_event(CellEvent(samples.cell(1), "started"))
    progress.on_event(CellEvent(samples.cell(1), "finished", seconds=9.0))
    assert progress.snapshot().has_estimate
    assert "about 9 s left" in progress.snapshot().line


def test_the_phase_is_shown_until_a_cell_starts_or_an_artifact_ends() -> None:
    progress = ProgressCounter([samples.cell(1)], {"images/a": 1.0})
    progress.phase = "starting Ray workers"
    progress.on_event(TaskEvent("images/a", "started"))  # it waits for its worker
    assert progress.snapshot().line.endswith("starting Ray workers")
    progress.on_event(TaskEvent("images/a", "finished", seconds=1.0))
    assert "starting" not in progress.snapshot().line
    progress.phase = "starting Ray workers for the cells"
    assert "starting Ray workers for the cells" in view_text(progress.snapshot())
    progress.on_event(CellEvent(samples.cell(1), "started"))
    assert progress.snapshot().phase == ""


def view_text(shot: Snapshot, width: int = 120, height: int = 40) -> str:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(LiveView("demo: Demo", shot, now=0.0))
    return printed_on(console)


def test_the_rate_counts_the_cells_of_the_last_minutes() -> None:
    now = 0.0
    cells = [samples.cell(number) for number in range(700)]
    progress = ProgressCounter(cells, clock=lambda: now)
    for number, cell in enumerate(cells):
        progress.on_event(CellEvent(cell, "started"))
        now += 1.0 if number < 600 else 10.0
        progress.on_event(CellEvent(cell, "finished", seconds=1.0))
    assert progress.snapshot().rate == pytest.approx(0.1, rel=0.05)
    assert progress.snapshot().rate_text.endswith("cells/min")


def test_without_a_terminal_plain_lines_failures_and_a_summary_are_printed(tmp_path: Path) -> None:
    console, cells = plain_console(), [samples.cell(number) for number in range(2)]
    progress = ProgressCounter(cells)
    with ProgressDisplay(progress, StatusFile(Files(tmp_path), "demo"), console):
        progress.on_event(CellEvent(cells[0], "started"))
        progress.on_event(CellEvent(cells[0], "finished", seconds=1.0))
        progress.on_event(CellEvent(cells[1], "failed", error="ValueError: [odd]", log="/logs/1"))
        wait_for(lambda: "cells 1/2" in printed_on(console))
    lines = printed_on(console).splitlines()
    assert lines[0] == f"failed: {cells[1].id}: ValueError: [odd] (log: /logs/1)"
    assert lines[1].startswith("cells 1/2: 0 running, 0 waiting, 1 failed")
    assert lines[-1].startswith("1 cell finished, 1 failed in ")
    assert len(lines) == 3
    assert "\x1b" not in printed_on(console)


def test_a_terminal_sees_the_running_cells_and_the_last_failures(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100, height=30, force_terminal=True)
    cells = [samples.cell(number) for number in range(30)]
    progress = ProgressCounter(cells, {"images/a": 0.0})
    with ProgressDisplay(progress, StatusFile(Files(tmp_path), "demo", "Demo"), console) as display:
        for cell in cells[:20]:
            progress.on_event(CellEvent(cell, "started"))
        progress.on_event(CellEvent(cells[0], "failed", error="ValueError: odd", log="/logs/0.err"))
        wait_for(lambda: "/logs/0.err" in printed_on(console))
        display.stopping()
        wait_for(lambda: STOPPING[:40] in printed_on(console))
    text = printed_on(console)
    assert "demo: Demo" in text
    assert "19 running, 10 waiting, " in text
    assert "ValueError: odd" in text


FULL = Snapshot(
    elapsed=4000.0,
    stages=(Stage("images", 32, 0, 32), Stage("sources", 7, 1, 16)),
    building=(InProgress("sources/tiny-clip.glyph-digits--0011aabb", 12.0, told="5 of 8"),),
    before=100,
    finished=40,
    failed=2,
    waiting=400,
    running=tuple(InProgress(f"fewshot.ViT-B-32.digits.k16.bolt.s{n}--0011aabb", 30.0 + n, 90.0) for n in range(40)),
    rate=0.5,
    eta=720.0,
    failures=(Failed("fewshot.digits", "ValueError: odd", "/a/store/logs/fewshot.digits.log"),) * 2,
    memory=Memory(3 * 2**30, 32 * 2**30, 5),
    gpus=(Gpu(0, "NVIDIA H200", 45.0, 12 * 2**30, 140 * 2**30),),
)


@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (60, 40), (200, 60)])
def test_the_view_fits_on_one_screen_from_sixty_columns(width: int, height: int) -> None:
    lines = view_text(FULL, width, height).splitlines()
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert len(lines) < height
    for fact in (
        "140 done (100 in earlier runs), 40 running, 400 waiting, 2 failed", "30.0 cells/min, about 12 min left",
        "memory 3.0 GiB of 32.0 GiB in 5 processes", "GPU 0 NVIDIA H200: 45 % busy, 12.0 GiB of 140.0 GiB",
        "5 of 8 12 s", "30 s of about 90 s", " more",
    ):  # fmt: skip
        assert fact in text
    assert text.count(" /a/store/logs/fewshot.digits.log") == 2
    if width >= 80:  # running work stands in one list
        first = next(number for number, line in enumerate(lines) if FULL.building[0].name in line)
        assert FULL.running[0].name in lines[first + 1]


def test_an_interrupted_run_prints_the_command_that_continues_it(tmp_path: Path) -> None:
    console, files = plain_console(), Files(tmp_path)
    file = StatusFile(files, "demo", "Demo", "python -m orchestrator grid demo")
    with pytest.raises(KeyboardInterrupt), ProgressDisplay(ProgressCounter([samples.cell()]), file, console):
        raise KeyboardInterrupt
    assert "stopped: 0 cells finished, 1 not done" in printed_on(console)
    assert printed_on(console).endswith("; continue with: python -m orchestrator grid demo\n")
    assert read_status(files, "demo").state == "stopped"
    blocked = tmp_path / "blocked" / "status"
    blocked.parent.mkdir()
    blocked.write_text("")
    with ProgressDisplay(ProgressCounter([]), StatusFile(Files(blocked.parent), "demo"), plain_console()):
        pass  # a status that cannot be written does not end the run
    assert blocked.read_text() == ""


def test_events_from_many_threads_are_all_counted() -> None:
    cells = [samples.cell(number) for number in range(400)]
    progress = ProgressCounter(cells)

    def work(part: int) -> None:
        for cell in cells[part::8]:
            progress.on_event(CellEvent(cell, "started"))
            progress.on_event(CellEvent(cell, "finished", seconds=0.1))
            progress.snapshot()

    at_once(8, work)
    shot = progress.snapshot()
    assert (shot.finished, shot.running, shot.waiting) == (400, (), 0)


def test_memory_is_that_of_this_process_and_more_than_nothing() -> None:
    found = process_tree_memory()
    assert 0 < found.used < found.total
    assert found.processes >= 1


def test_gpus_are_read_from_what_nvidia_smi_prints() -> None:
    printed = "0, NVIDIA H200, 45, 12288, 143771\n1, NVIDIA H200 MIG 1g.18gb, [N/A], 0, 16384\nNo devices were found\n"
    first, second = parse_nvidia_smi(printed)
    assert first == Gpu(0, "NVIDIA H200", 45.0, 12288 * 2**20, 143771 * 2**20)
    assert second.busy is None
    assert second.summary == "GPU 1 NVIDIA H200 MIG 1g.18gb: 0 B of 16.0 GiB"
