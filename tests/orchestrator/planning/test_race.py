"""A raced plan: blocks of cells with the artifacts that they need, and words about what is saved."""

import zlib
from pathlib import Path

import pytest

from orchestrator.artifacts.source_model import SourceModel
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.grid import Grid, load_grid
from orchestrator.planning.estimate import race_range
from orchestrator.planning.gpu_speeds import find_gpu
from orchestrator.planning.plan import Plan, make_plan, next_block, raced_plan
from orchestrator.report.grid_report import read_grid_results
from orchestrator.report.tables.accuracy import main_table
from orchestrator.store import Store
from orchestrator.store.results import Result
from tests.helpers.small_results import result

GRID = """
title: Race
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    domains: [glyphs]
    sources: leave_one_out
    shots: [1, 4]
    seeds: [1, 2]
    methods: [zero_shot, linear_probe, tip_adapter, bolt]
"""
MEANS = {"zero_shot": 30.0, "linear_probe": 60.0, "tip_adapter": 60.2, "bolt": 40.0}


@pytest.fixture
def grid(catalog: Catalog, tmp_path: Path) -> Grid:
    (tmp_path / "race.yaml").write_text(GRID)
    return load_grid(tmp_path / "race.yaml", catalog)


def measured(cell: Cell) -> Result:
    """The same score for the same words about a cell, whatever the version of its method."""
    words = f"{cell.dataset.name} {cell.method.name} {cell.shots} {cell.seed}"
    noise = zlib.crc32(words.encode()) % 17 / 3
    return result(cell, round(MEANS[cell.method.name] + noise, 1))


def blocks(plan: Plan, store: Store) -> list[Plan]:
    """Run a race to its end, without the arithmetic. Returns the plan of each block."""
    found = []
    while plan.todo:
        found.append(plan)
        for cell in plan.todo:
            store.write_result(measured(cell))
        plan = next_block(plan, store, {cell.id for block in found for cell in block.todo})
    return [*found, plan]


def test_a_race_builds_nothing_for_stopped_methods(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = make_plan(grid, catalog, store)
    first, *others = blocks(raced_plan(whole, store), store)
    assert len(first.todo) == 5 * (1 + 3 * 2)
    assert any(isinstance(spec, SourceModel) for spec in first.missing)
    later = {cell.method.name for plan in others for cell in plan.todo}
    assert later == {"linear_probe", "tip_adapter"}
    assert not any(isinstance(spec, SourceModel) for plan in others for spec in plan.artifacts)
    end = others[-1]
    assert len(end.done) < len(grid.cells)
    assert all(place.race.next is None for place in end.places)
    rest = make_plan(grid, catalog, store)  # without --race
    assert len(rest.todo) == len(grid.cells) - len(end.done)


def test_a_killed_race_continues_with_the_same_cells(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    whole, killed = Store(tmp_path / "whole"), Store(tmp_path / "killed")
    end = blocks(raced_plan(make_plan(grid, catalog, whole), whole), whole)[-1]
    while todo := raced_plan(make_plan(grid, catalog, killed), killed).todo:
        for cell in todo[:11]:
            killed.write_result(measured(cell))
    again = raced_plan(make_plan(grid, catalog, killed), killed)
    assert {one.cell for one in again.done} == {one.cell for one in end.done}
    assert [place.decisions for place in again.places] == [place.decisions for place in end.places]


def test_a_cell_that_always_fails_does_not_keep_a_race_running(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    """A failure that the cell did not cause is tried by the next command, and the race waits for it."""
    store = Store(tmp_path)
    plan = raced_plan(make_plan(grid, catalog, store), store)
    broken = plan.todo[-1]
    rounds, tried = 0, set[str]()
    while plan.todo:
        for cell in plan.todo:
            if cell != broken:
                store.write_result(measured(cell))
        tried.update(cell.id for cell in plan.todo)
        plan, rounds = next_block(plan, store, tried), rounds + 1
    assert rounds < 20
    assert any(place.race.next is not None for place in plan.places)
    assert broken in raced_plan(make_plan(grid, catalog, store), store).todo


def test_words_say_what_is_saved(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    store = Store(tmp_path)
    whole = make_plan(grid, catalog, store)
    first = raced_plan(whole, store)
    assert whole.race_line == ""
    assert "0 of 8 methods out, 0 of 2 comparisons ended; 0 of 104 cells" in first.race_line
    assert race_range(whole, first, find_gpu("h200")).startswith("a race measures 35 to 104 cells, on one NVIDIA")
    end = blocks(first, store)[-1]
    line = end.race_line
    assert "4 of 8 methods out, 2 of 2 comparisons ended" in line
    assert len(end.left_out) == 25
    assert line.endswith("25 of 104 cells (62% of their operations, about 16 s of one worker) saved")
    assert race_range(make_plan(grid, catalog, store), end, None) == "a race needs nothing more"
    for cell in make_plan(grid, catalog, store).todo:  # without --race
        store.write_result(measured(cell))
    assert raced_plan(make_plan(grid, catalog, store), store).race_line.endswith("0 of 104 cells saved")


def test_a_stopped_methods_mean_has_its_number_of_datasets(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    store = Store(tmp_path)
    end = blocks(raced_plan(make_plan(grid, catalog, store), store), store)[-1]
    results = read_grid_results(end, store)
    table = main_table(results, next(group for group in results.groups))
    by_method = {row[0].code: row[1] for row in table.rows}
    measured_of = [row.accuracy for row in results.rows if row.method == "bolt" and row.k == 1]
    mean = sum(measured_of) / len(measured_of)
    assert by_method["bolt"].text == f"\N{EN DASH} ({mean:.2f} over 5/8 datasets)"
    assert by_method["bolt"].value is None
    assert by_method["tip_adapter"].value is not None
    assert "as after a race" in table.caption
