"""A grid's results: what ``verdict.json`` and MLflow say of it."""

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from orchestrator.catalog import load_catalog
from orchestrator.cli.app import app
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile
from orchestrator.report.grid_report import read_grid_results
from orchestrator.report.write import verdict_file
from orchestrator.store import Store
from orchestrator.tracking.grid_runs import GridRuns
from tests.conftest import GiveDatabase
from tests.helpers import cells as samples
from tests.helpers.small_results import result

pytestmark = pytest.mark.xdist_group("mlflow")
GRID = """
title: One dataset of my own
verdict: {smallest_difference: 2.5}
blocks:
  - track: fewshot
    backbones: [tiny-clip]
    datasets: [glyph-digits]
    shots: [1, 4]
    seeds: [1, 2, 3]
    methods: [zero_shot, linear_probe, tip_adapter]
"""
ACCURACIES = {"zero_shot": 50.0, "linear_probe": 55.0, "tip_adapter": 80.0}


@pytest.fixture
def store(tmp_path: Path, give_database: GiveDatabase) -> Store:
    """Return a store with made-up results of the grid, predictions among them."""
    give_database(tmp_path / "runs" / "mlflow" / "mlflow.db")
    (tmp_path / "own.yaml").write_text(GRID)
    store = Store(tmp_path / "runs")
    for number, cell in enumerate(load_grid(tmp_path / "own.yaml", load_catalog()).cells):
        accuracy = ACCURACIES[cell.method.name] + cell.seed + cell.shots
        store.write_result(*samples.predictions(result(cell, accuracy), seed=number))
    return store


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 2], ids=["the whole grid", "two of its cells"])
def test_json_and_mlflow_agree_on_one_dataset(tmp_path: Path, store: Store, limit: int | None) -> None:
    """MLflow covers the whole grid, even where a run was limited to a few cells."""
    catalog = load_catalog()
    grid = load_grid(tmp_path / "own.yaml", catalog, limit=limit)
    plan = make_plan(grid, catalog, store)
    results = read_grid_results(plan, store)
    report = tmp_path / "report"
    report.mkdir()
    runs = GridRuns(grid, catalog, store)
    whole = read_grid_results(plan.of_whole_grid(store), store)
    complete, _ = runs.sync(whole, report, Console(file=io.StringIO()))
    assert complete
    tracked = [run for run in runs.open_tracker()._search("tags.kind = 'mean'") if "dataset" in run.data.params]
    by_method = {(run.data.params["method"], int(run.data.params["k"])): run.data for run in tracked}
    assert by_method.keys() == {(method, k) for method in ACCURACIES for k in (1, 4)}
    if limit is not None:
        return
    records = json.loads(verdict_file(results.verdict_records()))
    about_dataset = [record for record in records if record["dataset"] == "glyph-digits"]
    assert [record["k"] for record in about_dataset] == [1, 4]
    for record in about_dataset:
        assert record["statement"] == "best on this dataset: Tip-Adapter"
        assert record["smallest_difference"] == 2.5
        for score in record["methods"]:
            data = by_method[score["method"], record["k"]]
            assert data.tags["verdict"] == record["statement"]
            assert data.tags["in_best_set"] == ("yes" if score["in_best_set"] else "no")
            assert data.tags["recommended"] == ("yes" if score["method"] == record["recommended"] else "no")
            assert data.metrics["accuracy_mean"] == pytest.approx(score["mean"], abs=1e-3)
            assert data.metrics["n"] == score["n"]


def test_the_command_that_continues_a_sync_names_the_store(tmp_path: Path, store: Store) -> None:
    """Regression: without the store, the command was about the store ``runs`` of the working folder."""
    (tmp_path / "runs").rename(tmp_path / "my runs")
    (tmp_path / "my runs" / "mlflow" / "mlflow.db").write_bytes(b"damaged")
    words = ["sync", f"{tmp_path}/own.yaml", "--store", f"{tmp_path}/my runs"]
    said = CliRunner().invoke(app, words, catch_exceptions=False)
    assert said.exit_code == 1
    assert f"own.yaml --store '{tmp_path}/my runs'` continues" in said.output


def test_a_sync_without_the_set_of_the_last_run_keeps_its_runs(tmp_path: Path, store: Store) -> None:
    """A run with ``--set`` leaves runs in MLflow; a later ``sync`` without it is about the same cells."""
    command = f"python -m orchestrator grid {tmp_path}/own.yaml --set shots=[1] --set=seeds=[1]"
    StatusFile(store.files, f"{tmp_path}/own.yaml", command=command).write("ended", Snapshot())
    words = ["sync", f"{tmp_path}/own.yaml", "--store", store.url]
    first, second = (
        CliRunner().invoke(app, [*words, *options], catch_exceptions=False).output
        for options in (["--set", "shots=[1]", "--set", "seeds=[1]"], [])
    )
    added = int(re.findall(r"(\d+) runs added", first)[0])
    assert added > 3
    assert f"0 runs added, {added} unchanged, 0 removed" in second


def test_answers_stand_in_the_order_of_the_grid(tmp_path: Path) -> None:
    """Cells run in another order than the grid lists them."""
    three = GRID.replace("[glyph-digits]", "[glyph-digits, aerial-land, glyph-capitals]")
    (tmp_path / "two.yaml").write_text(three)
    catalog, store = load_catalog(), Store(tmp_path / "runs")
    grid = load_grid(tmp_path / "two.yaml", catalog)
    for cell in reversed(grid.cells):
        store.write_result(*samples.predictions(result(cell, ACCURACIES[cell.method.name] + cell.seed)))
    results = read_grid_results(make_plan(grid, catalog, store), store)
    about = [(answer.place.domain, answer.dataset) for answer in results.verdicts]
    domains = list(dict.fromkeys(cell.domain for cell in grid.cells))
    assert [domain for domain, dataset in about if not dataset] == [*domains, ""]
    assert [dataset for domain, dataset in about if domain == domains[0]] == ["", "glyph-digits", "glyph-capitals"]


def test_verdicts_by_another_metric_are_tracked_by_its_name(tmp_path: Path, store: Store) -> None:
    words = ["sync", f"{tmp_path}/own.yaml", "--store", store.url, "--metric", "macro_f1"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    catalog = load_catalog()
    means = GridRuns(load_grid(tmp_path / "own.yaml", catalog), catalog, store).open_tracker()
    runs = list(means._search("tags.kind = 'mean'"))
    assert runs
    for run in runs:
        assert run.data.tags["metric"] == "macro_f1"
        assert "macro_f1_mean" in run.data.metrics
        assert "accuracy_mean" not in run.data.metrics
