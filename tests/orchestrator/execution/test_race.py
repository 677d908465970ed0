"""A race in one session: one connection, one counter, places that go on by themselves while artifacts are there."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.core.cell import Cell
from orchestrator.core.events import CellEvent, TaskEvent
from orchestrator.core.settings import RunSettings
from orchestrator.execution import run
from orchestrator.execution.backend import Backend
from orchestrator.execution.task_graph import GraphTask
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan, raced_plan
from orchestrator.progress.counter import ProgressCounter
from orchestrator.store import Store
from tests.orchestrator.planning.test_race import GRID, blocks, measured

OnEvent = Callable[[CellEvent], Iterable[Cell] | None]


@pytest.mark.parametrize("keeps", [False, True], ids=["every look builds", "artifacts of the next looks are there"])
def test_a_session_runs_until_the_race_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    (tmp_path / "race.yaml").write_text(GRID)
    catalog, store = load_catalog(), Store(tmp_path / "store")
    grid = load_grid(tmp_path / "race.yaml", catalog)
    calls: list[list[Cell]] = []
    built: set[str] = set()
    unfinished_when_decided: list[int] = []

    def build(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
        built.update(tasks if keeps else ())
        return (TaskEvent(address, "finished") for address in tasks)

    def measure(cells: Sequence[Cell], settings: RunSettings, on_event: OnEvent, *, later: Sequence[Cell] = ()) -> None:
        calls.append([])
        waiting = deque(cells)
        while waiting:
            cell = waiting.popleft()
            calls[-1].append(cell)
            on_event(CellEvent(cell, "started"))
            store.write_result(measured(cell))
            more = list(on_event(CellEvent(cell, "finished")) or ())
            assert set(more) <= set(later)
            unfinished_when_decided.extend([len(waiting)] if more else [])
            waiting.extend(more)

    monkeypatch.setattr(run, "LOCAL", Backend(build, measure))
    monkeypatch.setattr(Store, "is_intact", lambda store, address, identity: address in built)
    plan = raced_plan(make_plan(grid, catalog, store), store)
    counter = ProgressCounter(plan.todo, {spec.address: 1.0 for spec in plan.missing}, plan.costs)
    finished: list[str] = []
    settings = RunSettings(store.url, device="cpu")
    end, _, started = run.execute(plan, settings, run.RunOptions(local=True, raced=True), counter, finished.append)
    other = Store(tmp_path / "other")
    expected = blocks(raced_plan(make_plan(grid, catalog, other), other), other)
    ids = [{cell.id for cell in cells} for cells in calls]
    assert set().union(*ids) == {result.cell.id for result in expected[-1].done}
    if keeps:  # the first look is after five datasets, and three more follow; then the second seed builds again
        assert len({cell.dataset for cell in calls[0]}) == 8
        assert [{cell.seed for cell in cells} for cells in calls[1:]] == [{2}]
        assert max(unfinished_when_decided) > 0  # a place does not wait for the other
    else:
        assert ids == [{cell.id for cell in block.todo} for block in expected[:-1]]
    assert started == len(finished) == len(end.done) == len(expected[-1].done)
    shot = counter.snapshot()
    assert (shot.finished, shot.waiting, shot.left) == (started, 0, False)
    assert "2 of 2 comparisons ended" in shot.race
    assert shot.race in shot.line
