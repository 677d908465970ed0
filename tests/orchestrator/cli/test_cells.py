"""The commands that list cells, plans and states, as tables and as JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from orchestrator.catalog import load_catalog
from orchestrator.cli.app import app
from orchestrator.cli.cells import cells
from orchestrator.grid import Grid, load_grid
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile
from orchestrator.store import Store
from orchestrator.store.results import Failure
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers import command
from tests.helpers.synthetic_results import drawn

Listed = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def grid() -> Grid:
    return load_grid("smoke", load_catalog())


@pytest.fixture
def listed(grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Listed:
    """Return the output of ``cells smoke --json`` if the first cell has finished and the second has failed."""
    store = Store(tmp_path)
    store.write_result(drawn(grid.cells[0], grid.label(grid.cells[0]), load_catalog()))
    for cell in grid.cells[:2]:  # an old failure of a finished cell does not count
        store.write_failure(Failure(cell.id, "ValueError: no", "", "x.log", 2, "2026-01-01T00:00:00+00:00"))

    def run(**options: Any) -> list[dict[str, Any]]:
        cells(grid="smoke", store=str(tmp_path), as_json=True, **options)
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
    said = [failed[name] for name in ("error", "attempts", "log", "accuracy")]
    assert said == ["ValueError: no", 2, "x.log", None]
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
    with pytest.raises(UserError, match=r"(?s)--method=glyph-inks.*it is a dataset: --dataset=glyph-inks"):
        listed(method=["glyph-inks"])
    with pytest.raises(UserError, match=r"known: 0, 1$"):
        listed(k=["2"])


def test_the_table_has_whole_ids_and_errors(
    grid: Grid, listed: Listed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells(grid="smoke", store=str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert all(cell.id in line for cell, line in zip(grid.cells, lines[1:], strict=False))
    assert "ValueError: no" in lines[2]


def test_a_name_in_brackets_is_printed_as_it_is(tmp_path: Path) -> None:
    """Rich would take it for markup: drop it, or fail at one that closes nothing."""
    methods = ["gda", {"linear_probe": {"epochs": 2}}, {"linear_probe": {"epochs": 3}}, {"lora": {"as": "a [/b] :x:"}}]
    block = {"track": "fewshot", "backbones": "tiny-clip", "datasets": ["glyph-kinds"], "shots": 1, "seeds": 1}
    path = tmp_path / "brackets.yaml"
    path.write_text(yaml.safe_dump({"title": "Brackets", "blocks": [{**block, "methods": methods}]}))
    for name in ("cells", "plan"):
        said = command.invoke(name, path, "--store", tmp_path)
        assert all(label in said for label in ("linear_probe[epochs=2]", "linear_probe[epochs=3]", "a [/b] :x:"))


PAGE = (Path(__file__).parents[3] / "docs" / "automation.md").read_text()


def printed(*words: str, code: int = 0) -> Any:
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ended.exit_code == code, ended.output
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> Path:
    """A folder with the mini grid, two of whose cells are finished."""
    made = tmp_path_factory.mktemp("json")
    give_database(made / "runs" / "mlflow" / "mlflow.db")
    assert command.run_local(made, "--only", "method=zero_shot").returncode == 0
    return made


def test_the_plan_counts_what_the_table_shows(folder: Path) -> None:
    words = [str(folder / "mini.yaml"), *command.options(folder)]
    plan = printed("plan", *words, "--gpu", "h200", "--json")
    assert plan["cells"] == {"all": 27, "finished": 3, "failed": 0, "to_do": 24}
    assert sum(group["cells"] for group in plan["methods"]) == 27
    assert sum(group["to_do"] for group in plan["methods"]) == 24
    assert sum(kind["bytes"] for kind in plan["artifacts"]) == plan["bytes_to_build"] > 0
    assert set(plan["gpu_hours"]) == {"float32", "tf32", "bfloat16"}
    assert plan["problems"] == plan["notes"] == []
    unread = ["--set", "protocol.atlas=as_published"]
    without = printed("plan", str(folder / "mini.yaml"), "--catalog", words[4], *unread, "--json")
    assert [note.startswith("note: the switch atlas") for note in without["notes"]] == [True]
    assert any("data-root" in problem for problem in without["problems"])
    assert all(f"`{field}`" in PAGE for field in plan if field != "format")


def test_a_command_or_path_to_copy_stays_in_one_line(tmp_path: Path) -> None:
    """Regression: ``status`` wrapped the command that continues a run, and a shell ran the line without ``--only``."""
    store = tmp_path / ("long" * 20)
    same = f"python -m orchestrator grid smoke --store {store} --only k=1"
    StatusFile(Store(store).files, "smoke", "Smoke", same).write("stopped", Snapshot())
    for words, shown in ((["status", "smoke"], f"continue with: {same}\n"), (["plan", "smoke"], f"store: {store}\n")):
        assert shown in CliRunner().invoke(app, [*words, "--store", str(store)], catch_exceptions=False).stdout


def test_the_status_has_the_cells_and_the_last_run(folder: Path) -> None:
    status = printed("status", str(folder / "mini.yaml"), *command.options(folder), "--json")
    assert status["cells"] == {"all": 27, "finished": 3, "failed": 0, "open": 24, "left_out": 0}
    assert status["run"]["state"] == "ended"
    assert [run["grid"] for run in printed("status", "--store", str(folder / "runs"), "--json")["runs"]] == ["mini"]
    assert all(f"`{field}`" in PAGE for field in status if field != "format")


@pytest.mark.parametrize(("grid", "code"), [("smoke", 0), ("eleven", 1)])
def test_the_doctor_says_whether_a_grid_can_run(grid: str, code: int, tmp_path: Path) -> None:
    found = printed("doctor", grid, "--store", str(tmp_path), "--json", code=code)
    assert found["grid"]["ready"] == (code == 0)
    assert all(state == "there" for state in found["grid"]["needs"].values()) == (code == 0)
    assert {"python", "memory", "store"} <= set(found["machine"])
    assert all(f"`{field}`" in PAGE for field in found["grid"])
