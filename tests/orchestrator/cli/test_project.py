"""``bolt.yaml``: written by ``data add``, the default of every command's options, and checked like any other file."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orchestrator.cli.app import app
from orchestrator.cli.project import read_project
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers.grid_run import tracked_runs
from tests.helpers.photographs import break_file, write_photographs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the commands, with two datasets that are not added yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    for variable in ("BOLT_STORE", "BOLT_DATA"):
        monkeypatch.delenv(variable, raising=False)
    for first, name in enumerate(("ware", "tools")):
        write_photographs(tmp_path / "pictures" / name, 6, 10 * first)
    return tmp_path


def run(*words: str) -> str:
    """The output of a command that ends with exit code 0."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


@pytest.mark.slow
def test_data_add_writes_it_and_every_command_reads_it(folder: Path) -> None:
    added = run("data", "add", "pictures/ware")
    assert "grid own --set 'datasets=[ware]'" in added
    project = read_project()
    assert (project.catalog, project.data_root) == (("catalog.yaml",), "pictures")
    assert "ware" in run("data", "list", "--domain", "own")
    planned = run("plan", "own", "--set", "datasets=[ware]", "--set", "shots=1", "--only", "method=zero_shot")
    assert str(folder / "runs") in planned
    with (folder / "bolt.yaml").open("a") as stream:
        stream.write("store: elsewhere\n")
    only = ["--set", "datasets=[ware]", "--set", "shots=1", "--only", "method=zero_shot"]
    assert str(folder / "elsewhere") in run("plan", "own", *only)
    assert str(folder / "mine") in run("plan", "own", *only, "--store", "mine"), "an option wins"


@pytest.mark.slow
def test_a_full_disk_leaves_the_project_file_whole_and_prints_the_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("data", "add", "pictures/ware")
    before = (folder / "bolt.yaml").read_text()
    write = Path.write_text

    def full(path: Path, text: str, **options: str) -> int:
        if "bolt.yaml" in path.name:
            write(path, text[:10], **options)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, text, **options)

    monkeypatch.setattr(Path, "write_text", full)
    added = run("data", "add", "pictures/tools", "--catalog", "other.yaml")
    assert "--catalog other.yaml" in added
    assert (folder / "bolt.yaml").read_text() == before
    assert not list(folder.glob(".bolt.yaml*"))


def test_a_dataset_in_another_folder_is_printed_with_its_data_root(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    write_photographs(folder / "other" / "cups", 6)
    added = run("data", "add", "other/cups")
    assert f"--data-root {folder / 'other'}" in added
    assert read_project().data_root == "pictures"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("catalogue: mine.yaml", "catalogue"),
        ("store: 3", "store"),
        ("data_root: [a]", "data_root"),
        ("- catalog.yaml", "bolt.yaml"),
        ("store: ''", "store"),
        ("catalog: {a: b}", "catalog"),
        ("catalog: [", "bolt.yaml"),
    ],
)
def test_a_wrong_project_file_is_named(folder: Path, text: str, named: str) -> None:
    (folder / "bolt.yaml").write_text(text + "\n")
    done = CliRunner().invoke(app, ["data", "list"])
    assert isinstance(done.exception, UserError)
    assert named in str(done.exception)


def test_doctor_makes_no_folder(folder: Path) -> None:
    assert "made by the first run" in run("doctor", "--store", "not-yet")
    assert not (folder / "not-yet").exists()


def test_a_grid_that_is_refused_leaves_no_folder(folder: Path) -> None:
    run("data", "add", "pictures/ware")
    break_file(folder / "pictures" / "ware" / "red_mug" / "001.jpg")
    (folder / "mine").mkdir()
    for store in ("not-yet", "mine"):
        words = ["grid", "own", "--set", "datasets=[ware]", "--set", "shots=1", "--local", "--store", store]
        assert isinstance(CliRunner().invoke(app, words).exception, UserError)
    assert not (folder / "not-yet").exists()
    assert list((folder / "mine").iterdir()) == []


def test_values_that_a_filter_takes_are_listed_in_their_order(folder: Path) -> None:
    done = CliRunner().invoke(app, ["plan", "own", "--only", "k=5"])
    assert "0, 1, 4, 16" in str(done.exception)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["", "s3:/bucket/runs", "gs:bucket", "pictures/ware", "pictures/ware/runs"])
def test_a_store_that_is_no_place_for_results_is_refused(folder: Path, store: str) -> None:
    run("data", "add", "pictures/ware")
    words = ["plan", "own", "--set", "datasets=[ware]", "--set", "shots=1", "--store", store]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, UserError)
    assert "--store" in str(done.exception)
    assert not (folder / "s3:").exists()


@pytest.mark.e2e
def test_two_datasets_one_after_the_other_keep_each_others_runs_and_report(
    folder: Path, give_database: GiveDatabase
) -> None:
    give_database(folder / "runs" / "mlflow" / "mlflow.db")
    quick = ["--local", "--set", "shots=1", "--set", "seeds=1", "--set", "methods=[zero_shot, tip_adapter]"]
    results, uri = folder / "runs" / "results", f"sqlite:///{folder}/runs/mlflow/mlflow.db"
    for name in ("ware", "tools"):
        run("data", "add", f"pictures/{name}")
        run("grid", "own", "--set", f"datasets=[{name}]", *quick)
        assert {cell for cell, _ in tracked_runs(uri, "own")} == {path.stem for path in results.glob("*.json")}
    assert len(tracked_runs(uri, "own")) == 4
    page = (folder / "runs" / "reports" / "own" / "rows.csv").read_text()
    assert "ware" in page
    assert "tools" in page
    run("sync", "own")
    assert len(tracked_runs(uri, "own")) == 4
    assert "4 done, 0 to do" in run("status", "own")
    cell = min(results.glob("*.json"))
    whole = cell.read_text()
    cell.write_text("{")
    assert cell.stem in run("status", "own")
    cell.write_text("{")
    assert cell.stem in run("plan", "own", "--set", "datasets=[tools]", *quick[1:])
    cell.write_text(whole)
    run("report", "own")
    again = (folder / "runs" / "reports" / "own" / "rows.csv").read_text()
    assert sorted(again.splitlines()) == sorted(page.splitlines())
    assert len(json.loads((folder / "runs" / "grids" / "own.json").read_text())) == 2
