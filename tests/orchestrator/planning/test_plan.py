"""The plan: finished, failed and open cells, their order, and missing artifacts."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.artifacts.required import required_artifacts
from orchestrator.catalog import Catalog
from orchestrator.core.cell import Cell
from orchestrator.grid import Grid, load_grid
from orchestrator.planning.checks import check_inputs
from orchestrator.planning.cost import cell_gflops
from orchestrator.planning.estimate import estimate, estimate_line
from orchestrator.planning.plan import Plan, in_running_order, make_plan, results_plan, source_models
from orchestrator.planning.plan_view import plan_view
from orchestrator.store import Store
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers.synthetic_results import drawn


@pytest.fixture(scope="module")
def grid(catalog: Catalog) -> Grid:
    return load_grid("smoke", catalog)


def failure(cell: Cell, error: str = "ValueError: no", retryable: bool = False) -> Failure:
    return Failure(cell.id, error, "", "", 1, "2026-01-01T00:00:00+00:00", retryable=retryable)


def test_every_cell_is_done_or_failed_or_to_do(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    """A cell whose worker was killed three times in seconds once stayed failed until --retry-failed."""
    store = Store(tmp_path)
    before = make_plan(grid, catalog, store)
    done, (failed, damaged, lost, cut) = grid.cells[:4], grid.cells[4:8]
    for cell in (*done, damaged):
        store.write_result(drawn(cell, grid.label(cell), catalog))
    store.write_failure(failure(failed))
    store.write_failure(failure(lost, "the worker process died", retryable=True))
    store.files.write(f"results/{damaged.id}.json", b"{")
    store.files.write(f"failures/{cut.id}.json", b"{")
    plan = make_plan(grid, catalog, store)
    assert {result.cell for result in plan.done} == set(done)
    assert {failure.id for failure in plan.failed} == {failed.id, lost.id, cut.id}
    assert plan.damaged == (damaged.id,)
    assert set(plan.todo) == set(grid.cells) - {*done, failed}
    assert plan.counts.startswith("15 cells: 4 done, 10 to do, 3 failed\n")
    assert plan.todo == tuple(cell for cell in plan.cells if cell in set(plan.todo))
    assert set(make_plan(grid, catalog, store, retry_failed=True).todo) == {*plan.todo, failed}
    after = before.with_outcomes(store)  # of a run
    assert {result.cell for result in after.done} == set(done)
    assert failed.id in {failure.id for failure in after.failed}
    assert not {*done, failed} & set(after.todo)
    assert before.todo == before.cells, "a plan does not change"


def test_who_only_reads_results_leaves_artifacts_alone(grid: Grid, catalog: Catalog, tmp_path: Path) -> None:
    """A report read every artifact that the open cells need, and set damaged ones aside."""
    store = Store(tmp_path)
    spec = make_plan(grid, catalog, store).missing[0]
    with store.building(spec.address, spec.identity) as builder:
        (builder.folder / "file").write_bytes(b"content")
    store.artifact(spec.address).path("file").write_bytes(b"damaged")
    plan = results_plan(grid, catalog, store)
    assert plan.todo
    assert not plan.artifacts
    assert store.artifact(spec.address)
    assert spec in make_plan(grid, catalog, store).missing  # a run builds it again


def test_equal_cells_that_share_no_objects_need_the_same_artifacts(catalog: Catalog) -> None:
    """The plan compares parts of cells by object. Cells that were read from results do not share objects."""
    grid = load_grid("demo", catalog)
    sources = source_models(grid, catalog, None)
    read = [Cell.from_dict(json.loads(json.dumps(cell.to_dict()))) for cell in grid.cells]
    assert read[0].protocol is not grid.cells[0].protocol
    assert required_artifacts(read, catalog, sources) == required_artifacts(iter(grid.cells), catalog, sources)


@pytest.mark.parametrize("name", ["demo-full", "demo-ablations", "switches"])
def test_the_artifacts_of_a_grid_are_those_of_its_cells(name: str, catalog: Catalog) -> None:
    """The plan looks at one cell of those that read the same."""
    grid = load_grid(name, catalog)
    plan = Plan(grid, catalog, None, grid.cells, source_models(grid, catalog, None))
    assert {*plan.artifacts_of(grid.cells)} == {spec for cell in grid.cells for spec in plan.artifacts_of([cell])}


class ReadCells(tuple[Cell, ...]):
    """Cells that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[Cell]:
        self.times += 1
        return super().__iter__()


def test_ready_cells_are_found_without_going_through_all_cells_for_each(grid: Grid, catalog: Catalog) -> None:
    """Each cell counted the totals of all cells anew: 29 s for 11,325 cells while an artifact was missing."""
    cells, (first, *_) = ReadCells(grid.cells), grid.cells
    plan = Plan(grid, catalog, None, cells, source_models(grid, catalog, None))
    plan = replace(plan, missing=plan.artifacts_of([first])[-1:])
    cells.times = 0
    assert first not in plan.ready()
    assert plan.ready()
    assert cells.times < 5 < len(cells)


def test_the_estimate_is_measured_for_similar_cells_and_counted_for_others(grid: Grid, catalog: Catalog) -> None:
    by_method = {name: [cell for cell in grid.cells if cell.method.name == name] for name in ("bolt", "linear_probe")}
    done = [drawn(cell, grid.label(cell), catalog) for cell in by_method["bolt"][:2]]
    todo = [*by_method["bolt"][2:], *by_method["linear_probe"]]
    cells = tuple(result.cell for result in done) + tuple(todo)
    plan = Plan(grid, catalog, None, cells, {}, done=tuple(done))
    (measured,), tflop = estimate(plan)
    seconds, gflop = sum(result.timings.total for result in done), sum(cell_gflops(r.cell, catalog) for r in done)
    assert measured == pytest.approx(seconds * cell_gflops(todo[0], catalog) / gflop)
    assert tflop == pytest.approx(sum(cell_gflops(cell, catalog) for cell in by_method["linear_probe"]) / 1e3)
    assert f"for 1 cell, from similar finished cells on {done[0].manifest.device}" in estimate_line(plan)
    assert "for 3 cells and the artifacts" in estimate_line(plan)
    assert estimate(Plan(grid, catalog, None, tuple(by_method["bolt"]), {}))[1] > 0


@pytest.mark.parametrize("data_root", [None, "empty"])
def test_missing_datasets_have_a_list_and_a_command(catalog: Catalog, tmp_path: Path, data_root: str | None) -> None:
    """The plan once named another command, with an argument that this command did not know."""
    root, store = tmp_path / data_root if data_root else None, Store(tmp_path / "store")
    own = load_grid("fewshot", catalog, set_=("seeds=[1]", "methods=[zero_shot]"), data_root=root)
    with pytest.raises(UserError) as found:
        check_inputs(make_plan(own, catalog, store, data_root=root))
    lines = str(found.value).splitlines()
    (names,) = [line.strip().split(", ") for line in lines if line.count(", ") > 20]
    assert set(names) == set(own.datasets)
    (command,) = [line.strip() for line in lines if "data prepare" in line]
    assert command == f"python -m orchestrator data prepare --grid fewshot --data-root {root or 'PATH'}"
    assert len(lines) <= 4
    two = load_grid("fewshot", catalog, only=["dataset=dtd,eurosat", "method=zero_shot", "backbone=vit-b-32"])
    shown = Console(width=200)
    with shown.capture() as text:
        shown.print(plan_view(make_plan(two, catalog, store), store))
    assert "data prepare dtd eurosat --data-root" in text.get()
    assert "doctor" not in text.get()


def test_cells_that_share_what_a_worker_keeps_follow_one_another(catalog: Catalog) -> None:
    """A process keeps the last method's values from its sources, and the images of the last support."""
    only = ("dataset=glyph-digits,glyph-inks", "method=atlas,bolt,linear_probe", "track=fewshot")
    cells = in_running_order(reversed(load_grid("demo", catalog, only=only).cells))
    sources = [(cell.dataset.name, cell.method) for cell in cells]
    supports = [(*source, cell.seed) for source, cell in zip(sources, cells, strict=True)]
    for kept in (sources, supports):
        assert len(list(groupby(kept))) == len(set(kept))
    of_dataset = [cell for cell in cells if cell.dataset.name == "glyph-inks"]
    assert [cell.method.name for cell in of_dataset][-1] == "linear_probe"
    first = [cell.shots for cell in of_dataset if (cell.method.name, cell.seed) == ("bolt", 1)]
    assert first == sorted(first, reverse=True)
    assert len(set(first)) > 1
