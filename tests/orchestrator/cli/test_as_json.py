"""What ``--json`` prints, and the exit codes beside it: the fields of docs/automation.md."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from tests.helpers import command

PAGE = (Path(__file__).parents[3] / "docs" / "automation.md").read_text()


def printed(*words: str, code: int = 0) -> Any:
    ended = CliRunner().invoke(app, words, catch_exceptions=False)
    assert ended.exit_code == code, ended.output
    return json.loads(ended.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the mini grid, two of whose cells are finished."""
    made = tmp_path_factory.mktemp("json")
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
    assert plan["problems"] == []
    without = printed("plan", str(folder / "mini.yaml"), "--catalog", words[4], "--json")
    assert any("data-root" in problem for problem in without["problems"])
    assert all(f"`{field}`" in PAGE for field in plan if field != "format")


def test_the_status_has_the_cells_and_the_last_run(folder: Path) -> None:
    status = printed("status", str(folder / "mini.yaml"), *command.options(folder), "--json")
    assert status["cells"] == {"all": 27, "finished": 3, "failed": 0, "open": 24}
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
