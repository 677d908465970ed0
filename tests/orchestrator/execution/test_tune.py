"""Cells on a real Ray: order, failures, dead workers, too little memory, time limits, and Ctrl-C."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, Resources
from orchestrator.core.settings import RunSettings
from orchestrator.planning.packing import Packing
from orchestrator.store.errors import RunStopped
from tests.helpers import cells as samples
from tests.helpers.waiting import wait_for

ONE_WORKER = Resources(cpus=2)
"""What a cell requests where one worker shows it all: a worker takes seconds to start."""
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("cluster")]


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(str(tmp_path))


def run(
    cells: list[Cell],
    settings: RunSettings,
    runner: str,
    *,
    request: Callable[[Cell], Resources] = lambda cell: Resources(),
    on_event: Callable[[CellEvent], None] = lambda event: None,
    attempts: int = 2,
    **more: Any,
) -> list[CellEvent]:
    """Run cells with a runner of ``tests/helpers/cells.py``; returns the events."""
    from orchestrator.execution.tune.driver import run_cells

    events: list[CellEvent] = []

    def collect(event: CellEvent) -> None:
        events.append(event)
        on_event(event)

    runner = f"{samples.HERE}:{runner}"
    run_cells(cells, settings, request=request, max_attempts=attempts, on_event=collect, runner=runner, **more)
    return events


def ends_of(events: list[CellEvent], cells: list[Cell]) -> dict[int, CellEvent]:
    """Return the last event of each seed, after checking that each cell has ended once."""
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    return {event.cell.seed: event for event in events if event.kind != "started"}


def finished(ends: dict[int, CellEvent]) -> set[int]:
    return {seed for seed, event in ends.items() if event.kind == "finished"}


def notes(cell: Cell, settings: RunSettings) -> list[list[str]]:
    """What the runner has noted for a cell: lines of a word, its process id, and the time."""
    path = Path(settings.store_url, cell.id)
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def count_ends(events: list[CellEvent]) -> Counter[str]:
    return Counter(event.cell.id for event in events if event.kind != "started")


def test_every_cell_runs_once_nearly_in_order_in_reused_workers(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(300)]
    events = run(cells, settings, "write_nothing")
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    assert all(len(notes(cell, settings)) == 1 for cell in cells)
    assert len({notes(cell, settings)[0][1] for cell in cells}) <= 4
    begun = [event.cell.seed for event in events if event.kind == "started"]
    late = [seed for place, seed in enumerate(begun) if abs(place - seed) >= 10]
    assert len(late) <= 2  # the first cell of a worker that starts slowly


def test_later_cells_follow_in_the_same_worker_and_only_those_that_are_asked_for(settings: RunSettings) -> None:
    from orchestrator.execution.tune.driver import run_cells

    first, later = samples.cell(0), [samples.cell(number) for number in range(1, 5)]
    asked = {first: [later[2]], later[2]: [later[0], later[1]]}
    finished: list[Cell] = []

    def on_event(event: CellEvent) -> list[Cell]:
        finished.extend([event.cell] if event.kind == "finished" else [])
        return asked.get(event.cell, []) if event.kind == "finished" else []

    run_cells(
        [first], settings, on_event, later=later, request=lambda cell: ONE_WORKER, max_attempts=1,
        runner=f"{samples.HERE}:write_nothing",
    )  # fmt: skip
    assert finished == [first, later[2], later[0], later[1]]
    assert len({notes(cell, settings)[0][1] for cell in finished}) == 1


def test_each_kind_of_failure_is_reported_and_does_not_stop_the_others(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(10)]
    reported = run(cells, settings, "misbehave", request=lambda cell: ONE_WORKER)
    events = ends_of(reported, cells)
    assert finished(events) == {0, 2, 4, 6, 8}
    method, store, worker = events[5], events[7], events[3]
    assert (method.error, method.recorded) == ("ValueError: one too many", True)
    assert Path(method.log).is_file()
    assert len(notes(cells[5], settings)) == 1  # a method that raises is not run again
    assert (store.error, store.recorded) == ("OSError: no space left on device", False)
    assert "raise OSError" in store.traceback
    assert store.attempt == len(notes(cells[7], settings)) == 2
    assert worker.error.startswith("the worker process died")
    assert (worker.attempt, worker.recorded) == (2, False)
    assert [event.retryable for event in (method, store, worker)] == [False, False, True]


def test_a_killed_worker_is_replaced_and_both_slots_are_used_again(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(400)]
    killed: list[str] = []
    after: Counter[str] = Counter()

    def kill_one(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 6 and event.attempt == 1:
            wait_for(lambda: bool(notes(event.cell, settings)))
            killed.append(notes(event.cell, settings)[0][1])
            os.kill(int(killed[0]), signal.SIGKILL)
        if event.kind == "finished" and killed:
            after[notes(event.cell, settings)[-1][1]] += 1
            if len([process for process, count in after.items() if count >= 3 and process not in killed]) == 2:
                Path(settings.store_url, "enough").touch()

    events = run(cells, settings, "nap_or_hang_once", on_event=kill_one)
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    assert all(event.kind != "failed" for event in events)
    written = Counter(cell.id for cell in cells for note in notes(cell, settings) if note[0] == "finished")
    assert written == {cell.id: 1 for cell in cells}
    assert len(killed) == 1
    assert Path(settings.store_url, "enough").exists(), f"one of two slots did not work any more: {after}"


def test_a_cell_that_runs_out_of_memory_is_run_once_more_with_as_much_as_there_is(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(5)]
    out_of_memory: list[tuple[int, float]] = []

    def note(cell: Cell, share: float) -> None:
        out_of_memory.append((cell.seed, share))

    quarter = Resources(cpus=1.5, gpus=0.25)  # one worker at a time
    last = ends_of(run(cells, settings, "need_memory", request=lambda cell: quarter, on_gpu_oom=note), cells)
    assert finished(last) == {0, 2, 4}
    assert [last[seed].attempt for seed in range(5)] == [2, 2, 2, 2, 1]
    shares = [[note[0] for note in notes(cell, settings)] for cell in cells]
    assert shares[:2] == [["share=0.25", "share=1"]] * 2
    assert shares[4] == ["share=0.25"]
    assert (last[1].recorded, last[3].recorded) == (False, False)
    assert "0.25 of a GPU" in last[1].error
    assert "alone on a node" in last[3].error
    assert sorted(out_of_memory) == [(0, 0.25), (1, 0.25), (1, 1.0)]
    assert last[4].gpu_mib == 100.0


def test_a_cell_over_its_time_limit_fails_and_its_slot_is_used_again(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock leaps by a day when the cell begins, so no other cell can be over the limit on a busy machine."""
    from orchestrator.execution.tune import callback, driver

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return time.monotonic() + 86400 * len(notes(cells[1], settings))

    monkeypatch.setattr(callback, "time", Clock)
    monkeypatch.setattr(driver, "HEALTH_CHECK_SECONDS", 0.1)
    cells = [samples.cell(number) for number in range(4)]
    events = run(cells, settings, "hang_if_seed_is_one", request=lambda cell: ONE_WORKER, cell_limit=1800)
    last = ends_of(events, cells)
    assert finished(last) == {0, 2, 3}
    assert (last[1].attempt, last[1].recorded) == (1, False)
    assert "limit of 30 min" in last[1].error
    assert "--cell-limit" in last[1].error


def test_gpus_that_join_are_asked_for_their_memory(cluster: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    from orchestrator.execution.tune import capacity

    sizes = chain([Resources(2, 0)], repeat(Resources(2, 2)))  # two GPUs join
    monkeypatch.setattr(capacity, "cluster_size", lambda: next(sizes))
    monkeypatch.setattr(capacity, "_smallest_on_this_node", lambda: 1024.0)
    packing = Packing(load_catalog())
    size = capacity.cluster_capacity(cluster, packing, device=None)
    assert (packing.gpus, packing.gpu_mib) == (0, None)
    assert size() == Resources(2, 2)
    assert (packing.gpus, packing.gpu_mib) == (2, 1024.0)


def test_an_unusable_store_stops_the_run_and_fails_no_cell(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(50)]
    seen: list[CellEvent] = []
    with pytest.raises(RunStopped, match="the disk is full"):
        run(cells, settings, "fail_on_a_full_disk", on_event=seen.append)
    assert count_ends(seen) == {cell.id: 1 for cell in cells[:2]}
    assert all(event.kind != "failed" for event in seen)
    assert len([event for event in seen if event.kind == "started"]) < 10


def test_requests_that_alternate_keep_their_workers_and_each_sees_only_its_gpus(settings: RunSettings) -> None:
    cells = [samples.cell(number) for number in range(40)]
    requests = [Resources(cpus=0.25, gpus=2.0), Resources(cpus=1, gpus=0.5), Resources(cpus=2)]
    seen = [{"devices=0,1"}, {"devices=0", "devices=1"}, {"devices="}]
    kinds = [2 if number in (18, 38) else int(number % 4 == 0) for number in range(40)]
    events = run(cells, settings, "note_visible_gpus", request=lambda cell: requests[kinds[cell.seed]])
    assert count_ends(events) == {cell.id: 1 for cell in cells}
    noted = [notes(cell, settings)[0] for cell in cells]
    for kind, gpus in enumerate(seen):
        assert {devices for (devices, *_), own in zip(noted, kinds, strict=True) if own == kind} <= gpus
    assert len({process for _, process, _ in noted}) <= 6  # one, two and one, and two more


def test_an_exception_stops_the_workers_and_leaves_the_cluster_usable(settings: RunSettings) -> None:
    cells, events = [samples.cell(number) for number in range(10)], list[CellEvent]()

    def interrupt(event: CellEvent) -> None:
        if event.kind == "started" and event.cell.seed == 1:
            signal.raise_signal(signal.SIGINT)

    def fill(event: CellEvent) -> None:
        events.append(event)
        if event.kind == "finished" and event.cell.seed == 3:
            raise OSError("disk full")

    with pytest.raises(KeyboardInterrupt):
        run(cells, settings, "sleep_long", on_event=interrupt)
    with pytest.raises(OSError, match="disk full"):
        run(cells, settings, "write_nothing", request=lambda cell: ONE_WORKER, on_event=fill)
    assert count_ends(events) == {cell.id: 1 for cell in cells[:4]}
    ended = [cell.seed for cell in cells for note in notes(cell, settings) if note[0] == "finished"]
    assert ended[:4] == [0, 1, 2, 3]  # once each: the sleeping cells were not waited for
