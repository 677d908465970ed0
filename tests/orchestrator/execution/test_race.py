"""A race runs block after block in one session: one connection, one counter, no artifact of a stopped method."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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


def test_a_session_runs_blocks_until_the_race_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "race.yaml").write_text(GRID)
    catalog, store = load_catalog(), Store(tmp_path / "store")
    grid = load_grid(tmp_path / "race.yaml", catalog)
    asked: list[set[str]] = []

    def build(tasks: Mapping[str, GraphTask]) -> Iterator[TaskEvent]:
        return (TaskEvent(address, "finished") for address in tasks)

    def measure(cells: Sequence[Cell], settings: RunSettings, on_event: Callable[[CellEvent], None]) -> None:
        asked.append({cell.id for cell in cells})
        for cell in cells:
            on_event(CellEvent(cell, "started"))
            store.write_result(measured(cell))
            on_event(CellEvent(cell, "finished"))

    monkeypatch.setattr(run, "LOCAL", Backend(build, measure))
    plan = raced_plan(make_plan(grid, catalog, store), store)
    counter = ProgressCounter(plan.todo, {spec.address: 1.0 for spec in plan.missing}, plan.costs)
    finished: list[str] = []
    settings = RunSettings(store.url, device="cpu")
    end, _, started = run.execute(plan, settings, run.RunOptions(local=True, raced=True), counter, finished.append)
    other = Store(tmp_path / "other")
    expected = blocks(raced_plan(make_plan(grid, catalog, other), other), other)
    assert asked == [{cell.id for cell in block.todo} for block in expected[:-1]]
    assert started == len(finished) == len(end.done) == len(expected[-1].done)
    shot = counter.snapshot()
    assert (shot.finished, shot.waiting, shot.left) == (started, 0, False)
    assert "2 of 2 places over" in shot.race
    assert shot.race in shot.line
