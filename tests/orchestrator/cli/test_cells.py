"""The command ``cells``: filters, states, and its JSON records."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.catalog import load_catalog
from orchestrator.cli.cells import cells
from orchestrator.grid import Grid, load_grid
from orchestrator.store import Store
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.helpers.synthetic_results import drawn

Listed = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid("smoke", load_catalog())


@pytest.fixture
def listed(grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Listed:
    """What ``cells smoke --json`` prints on a store where the first cell has finished and the second has failed."""
    store = Store(tmp_path)
    store.write_result(drawn(grid.cells[0], grid.label(grid.cells[0]), load_catalog()))
    for cell in grid.cells[:2]:  # an old failure of a finished cell does not count
        store.write_failure(Failure(cell.id, "ValueError: no", "", "x.log", 2, "2026-01-01T00:00:00+00:00"))

    def run(**options: Any) -> list[dict[str, Any]]:
        cells("smoke", store=str(tmp_path), as_json=True, **options)
        found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
        return found

    return run


def test_every_cell_is_listed_with_its_state(grid: Grid, listed: Listed, tmp_path: Path) -> None:
    found = listed()
    assert [one["id"] for one in found] == [cell.id for cell in grid.cells]
    assert [one["state"] for one in found] == ["finished", "failed"] + ["open"] * (len(grid.cells) - 2)
    finished, failed, *rest = found
    assert finished["accuracy"] == Store(tmp_path).read_result(grid.cells[0].id).accuracies[0]
    assert finished["error"] is None
    assert (failed["error"], failed["attempts"], failed["log"], failed["accuracy"]) == (
        "ValueError: no",
        2,
        "x.log",
        None,
    )
    assert {one["seconds"] for one in rest} == {None}


def test_filters_narrow_each_other_and_states_add_up(grid: Grid, listed: Listed) -> None:
    assert {one["method"] for one in listed(method=["bolt,linear_probe"])} == {"bolt", "linear_probe"}
    dataset = grid.cells[-1].dataset.name
    expected = [cell.id for cell in grid.cells if cell.dataset.name == dataset and cell.method.name == "bolt"]
    assert [one["id"] for one in listed(method=["bolt"], dataset=[dataset])] == expected
    assert [one["id"] for one in listed(failed=True)] == [grid.cells[1].id]
    assert [one["id"] for one in listed(failed=True, finished=True)] == [cell.id for cell in grid.cells[:2]]
    assert len(listed(open_=True)) == len(grid.cells) - 2


def test_an_unknown_value_names_its_option_and_the_nearest_value(listed: Listed) -> None:
    with pytest.raises(UserError, match=r"(?s)--method=bollt.*'bolt'"):
        listed(method=["bollt"])


def test_the_table_has_whole_ids_and_errors(
    grid: Grid, listed: Listed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells("smoke", store=str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert all(cell.id in line for cell, line in zip(grid.cells, lines[1:], strict=False))
    assert "ValueError: no" in lines[2]
