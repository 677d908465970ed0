"""Results for Python code and other programs: ``orchestrator.results`` and its like, and the ``results`` command."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score
from typer.testing import CliRunner

import orchestrator as library
from orchestrator.analysis.rows import Row
from orchestrator.artifacts.source_model import source_address
from orchestrator.catalog import load_catalog
from orchestrator.cli.app import app
from orchestrator.core.settings import RunSettings
from orchestrator.grid import load_grid
from orchestrator.planning.plan import make_plan
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile
from orchestrator.report.grid_report import read_grid_results, write_grid_report
from orchestrator.sharing import grid_listing
from orchestrator.sharing.frames import COLUMNS
from orchestrator.sharing.grid_listing import list_grid, write_listing
from orchestrator.sharing.verify import verify_bundle
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from tests.helpers.command import invoke
from tests.orchestrator.sharing.conftest import Stores

PAGE = Path(__file__).resolve().parents[3] / "docs" / "results.md"


@pytest.fixture
def frame(stores: Stores, whole: Store) -> pd.DataFrame:
    return library.results(whole.url, stores.grid_file)


def test_the_frame_has_a_row_for_each_cell_and_test_split(frame: pd.DataFrame, stores: Stores, whole: Store) -> None:
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["cell_id"]) == [cell.id for cell in stores.cells]
    assert set(frame["method"]) == {"zero_shot", "linear_probe", "tip_adapter", "task_res"}
    for row in frame.to_dict("records"):
        (scored,) = whole.read_result(row["cell_id"]).evaluations
        assert (row["accuracy"], row["total"], row["evaluated_on"]) == (scored.accuracy, scored.total, scored.dataset)


def test_every_column_is_documented() -> None:
    lines = PAGE.read_text().splitlines()
    assert [line.split("`")[1] for line in lines if line.startswith("| `")][: len(COLUMNS)] == list(COLUMNS)


def test_predictions_are_those_that_the_rows_count(frame: pd.DataFrame, stores: Stores, whole: Store) -> None:
    found = library.predictions(whole.url, stores.grid_file)
    assert set(found) == set(zip(frame["cell_id"], frame["evaluated_on"], strict=True))
    for row in frame.to_dict("records"):
        split = found[row["cell_id"], row["evaluated_on"]]
        assert 100 * np.mean(split.labels == split.predicted) == pytest.approx(row["accuracy"])


def test_the_verdict_is_that_of_the_report(stores: Stores, whole: Store, tmp_path: Path) -> None:
    catalog = load_catalog()
    grid = load_grid(stores.grid_file, catalog)
    folder = write_grid_report(read_grid_results(make_plan(grid, catalog, whole), whole), whole).parent
    written = json.loads((folder / "verdict.json").read_text())
    answers = library.verdict(whole.url, stores.grid_file)
    assert answers
    ours = json.loads(json.dumps([record for answer in answers for record in answer.records()]))
    fields = ("track", "domain", "dataset", "k", "outcome", "best_set", "recommended", "methods", "pairs")
    assert [[record[name] for name in fields] for record in ours] == [
        [record[name] for name in fields] for record in written
    ]
    rows = pd.read_csv(folder / "rows.csv")
    frame = library.results(whole.url, stores.grid_file)
    pd.testing.assert_frame_equal(rows[list(COLUMNS)].sort_values("cell_id", ignore_index=True),
                                  frame.sort_values("cell_id", ignore_index=True), check_dtype=False)  # fmt: skip


def printed(*words: str) -> str:
    return invoke("results", *words)


def write_listing_of(stores: Stores, store: Store) -> str:
    """The grid's file, as text, after its listing was written into the store."""
    settings, grid = RunSettings(store.url), str(stores.grid_file)
    write_listing(grid, stores.world.grid, stores.world.catalog, settings)
    return grid


def test_the_command_writes_every_format(frame: pd.DataFrame, stores: Stores, whole: Store, tmp_path: Path) -> None:
    grid = write_listing_of(stores, whole)
    tables = {"csv": pd.read_csv(io.StringIO(printed(grid, "--store", whole.url)))}
    for name, read in (("json", pd.read_json), ("parquet", pd.read_parquet)):
        path = tmp_path / f"table.{name}"
        assert str(path) in printed(grid, "--store", whole.url, "-o", str(path)), "the suffix names the format"
        tables[name] = read(path)
    for table in tables.values():
        pd.testing.assert_frame_equal(table, frame, check_dtype=False)
    hints = get_type_hints(Row)
    for name in COLUMNS:
        if hints[name] in (int, bool):
            assert tables["parquet"][name].dtype == {int: "int64", bool: "bool"}[hints[name]]


def test_errors_of_the_command_are_for_people(stores: Stores, whole: Store, tmp_path: Path) -> None:
    grid = write_listing_of(stores, whole)
    for words, named in (
        (("--store", str(tmp_path / "empty")), "empty"),
        (("--store", whole.url, "--format", "parquet"), "-o"),
        (("--store", whole.url, "-o", str(tmp_path / "no" / "folder.csv")), "folder.csv"),
        (("--store", whole.url, "-o", str(tmp_path / "table.xlsx")), "name a .csv, .json or .parquet"),
        (("--store", whole.url, "--format", "json", "-o", str(tmp_path / "table.csv")), "does not fit --format json"),
    ):
        with pytest.raises(UserError, match=named):
            printed(grid, *words)


def test_wrong_arguments_of_the_functions_are_said(stores: Stores, whole: Store) -> None:
    """Regression: a text was read as the list of its letters, and an unknown metric was a ``KeyError``."""
    for wrong in ({"catalog": "mine.yaml"}, {"set_": "shots=[1]"}):
        with pytest.raises(TypeError, match="are lists"):
            library.results(whole.url, stores.grid_file, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="did you mean 'macro_f1'"):
        library.verdict(whole.url, stores.grid_file, metric="macrof1")  # type: ignore[arg-type]


@pytest.mark.e2e
def test_a_grid_is_read_without_importing_pytorch(stores: Stores, whole: Store) -> None:
    grid = write_listing_of(stores, whole)
    script = """
import contextlib, sys
from orchestrator.__main__ import main
grid = sys.argv[1:]
for sys.argv[1:] in (["results", *grid], ["status", *grid]):
    with contextlib.suppress(SystemExit):
        main()
heavy = {"torch", "ray", "mlflow", "pandas"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""
    command = [sys.executable, "-c", script, grid, "--store", whole.url]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert "tip_adapter" in run.stdout
    assert "13 done, 0 to do" in run.stdout


OWN_CATALOG = """
domains:
  own: {title: Own}
datasets:
  pets: &entry
    title: Pets
    domain: own
    route: {kind: folder, folder: pets}
    classes: 2
    sizes: {train: 3, test: 1}
    splits: {recipe: eighty_twenty}
    prompts: ["a {}"]
    licence: none
  cars: {<<: *entry, title: Cars, route: {kind: folder, folder: cars}}
"""
OWN_GRID = """
title: Own images
blocks:
  - {track: fewshot, backbones: [tiny-clip], domains: [own], shots: [1], seeds: [1], methods: [bolt]}
"""


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, RunSettings]:
    """A grid of BOLT on two folders of images, and settings with its catalog file and the folder of both datasets."""
    (tmp_path / "catalog.yaml").write_text(OWN_CATALOG)
    (tmp_path / "own.yaml").write_text(OWN_GRID)
    for dataset in ("pets", "cars"):
        for name in ("a", "b"):
            (tmp_path / "data" / dataset / name).mkdir(parents=True)
            (tmp_path / "data" / dataset / name / "1.png").write_bytes(b"x")
    files = (str(tmp_path / "catalog.yaml"),)
    return str(tmp_path / "own.yaml"), RunSettings(str(tmp_path / "runs"), str(tmp_path / "data"), catalog_files=files)


def test_a_listing_counts_until_its_origin_changes(
    own: tuple[str, RunSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, settings = own
    included = tmp_path / "part.yaml"
    included.write_text(OWN_GRID)
    Path(grid).write_text("title: Own\ninclude: [part.yaml]\n")
    expanded: list[str] = []
    expand = grid_listing.expand_grid

    def counted(grid: str, *rest: Any) -> Any:
        expanded.append(grid)
        return expand(grid, *rest)

    monkeypatch.setattr(grid_listing, "expand_grid", counted)

    def is_used(overrides: Sequence[str] = ()) -> bool:
        """Whether no grid is expanded to list it; the listing is then written again."""
        before = len(expanded)
        listing, used = list_grid(grid, settings, overrides), len(expanded) == before
        loaded, catalog = expand(grid, settings, overrides)
        assert list(listing.labels) == [cell.id for cell in loaded.cells]
        write_listing(grid, loaded, catalog, settings, overrides)
        return used

    assert [is_used(), is_used()] == [False, True]
    assert [is_used(["datasets=[pets]"]), is_used(["datasets=[pets]"]), is_used()] == [False, True, False]
    (tmp_path / "data" / "cars" / "a" / "2.png").write_bytes(b"x")
    assert not is_used()
    included.write_text(OWN_GRID.replace("seeds: [1]", "seeds: [2]"))
    assert not is_used()
    os.utime(settings.catalog_files[0], ns=(1, 1))
    assert [is_used(), is_used()] == [False, True]
    monkeypatch.setattr(grid_listing, "outside_packages", lambda: {"my-methods": "1.1"})
    assert [is_used(), is_used()] == [False, True]  # its methods may have other versions, and their cells other ids
    (tmp_path / "data" / "cars.excluded.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match="list of excluded images"):
        list_grid(*own)
    included.unlink()
    with pytest.raises(UserError, match="part"):
        list_grid(*own)


def test_results_that_are_not_found_without_the_images_are_explained(own: tuple[str, RunSettings]) -> None:
    """Regression: without ``--data-root`` the cells have other ids, and finished ones counted as open in silence."""
    grid, settings = own
    assert not list_grid(grid, settings).absent
    (catalog,) = settings.catalog_files
    for root, where in ((None, "there"), ("/nowhere", "in /nowhere")):
        said = f"the images of pets, cars are not {where}, and without them their results are not found: give the data"
        for function in (library.results, library.predictions, library.verdict):
            with pytest.raises(UserError, match=said):
                function(settings.store_url, grid, catalog=[catalog], data_root=root)
        options = ["--catalog", catalog, "--store", settings.store_url, *(["--data-root", root] if root else [])]
        for command in (["cells"], ["status"], ["status", "--json"]):
            assert f"note: {said}" in CliRunner().invoke(app, [command[0], grid, *options, *command[1:]]).stderr
    block = "{track: cross_dataset, backbones: [tiny-clip], datasets: [glyph-inks], evaluate_on: [pets], shots: [1]"
    Path(grid).write_text(f"title: Own\nblocks: [{block}, seeds: [1], methods: [zero_shot]}}]")
    assert list_grid(grid, replace(settings, data_root=None)).absent.startswith("the images of pets are not there")


def test_targets_that_share_images_are_named(own: tuple[str, RunSettings]) -> None:
    """A verdict over datasets counts them as independent observations."""
    grid, settings = own
    Path(grid).write_text(OWN_GRID.replace("bolt", "gda"))
    (catalog,) = settings.catalog_files

    def notes() -> tuple[str, ...]:
        return load_grid(grid, load_catalog([catalog]), data_root=settings.data_folder).notes

    assert not any("share images" in note for note in notes())
    Path(catalog).write_text(OWN_CATALOG.replace("title: Cars", "title: Cars, images_of: pets"))
    assert any(note.startswith("note: pets and cars share images; a verdict") for note in notes())


def test_a_grid_without_source_models_is_listed_from_the_store(own: tuple[str, RunSettings], tmp_path: Path) -> None:
    """Which cells it has depends on what the store's source models gain."""
    grid, settings = own
    Path(grid).write_text(OWN_GRID.replace("methods:", "sources: {rule: leave_one_out, min_gain: 1}, methods:"))
    store = Store(tmp_path / "runs")
    with pytest.raises(UserError, match="min_gain"):
        list_grid(grid, settings)
    catalog = load_catalog(settings.catalog_files)
    loaded = load_grid(grid, catalog, data_root=settings.data_folder, gain_of=lambda backbone, source: 5.0)
    for reference in loaded.sources:
        with store.building(source_address("tiny-clip", reference), {}) as built:
            built.meta.update(accuracy_fine_tuned=90.0, accuracy_zero_shot=85.0)
    listing = list_grid(grid, settings)
    assert list(listing.labels) == [cell.id for cell in loaded.cells]


@pytest.mark.parametrize("given", [True, False], ids=["--set given", "those of the last run"])
def test_every_command_sees_the_cells_of_the_same_set(
    stores: Stores, whole: Store, tmp_path: Path, given: bool, copy_of: Callable[[Store, str], Store]
) -> None:
    grid, name, values = str(stores.grid_file), stores.grid_file.stem, ["shots=[1]", "seeds=[2]"]
    store = whole if given else copy_of(whole, "runs")
    command = f"python -m orchestrator grid {name}.yaml --set shots=[1] --only k=1 --set=seeds=[2]"
    if not given:
        StatusFile(store.files, grid, "", command).write("ended", Snapshot())
    options = [word for value in values for word in ("--set", value)] if given else []
    set_ = values if given else None
    ids = set(library.results(store.url, grid, set_=set_)["cell_id"])
    assert len(ids) == 4
    assert {cell for cell, _ in library.predictions(store.url, grid, set_=set_)} == ids
    assert {verdict.k for answer in library.verdict(store.url, grid, set_=set_) for verdict in answer.verdicts} == {1}
    commands = {
        "results": [], "cells": ["--json"], "bundle": ["-o", str(tmp_path / "b.zip")], "status": [],
        "report": ["-o", str(tmp_path / "paper")] if given else [],
    }  # fmt: skip
    (own := tmp_path / "paper" / "figures" / "own.pdf").parent.mkdir(parents=True)
    own.touch()
    said = {
        name: CliRunner().invoke(app, [name, grid, "--store", store.url, *options, *more], catch_exceptions=False)
        for name, more in commands.items()
    }
    for result in said.values():
        assert ("the last run" in result.stderr) is not given
    assert set(pd.read_csv(io.StringIO(said["results"].stdout))["cell_id"]) == ids
    assert {one["id"] for one in json.loads(said["cells"].stdout)} == ids
    assert "4 of 4 cells" in said["bundle"].stdout
    assert "4 cells: 4 done" in said["status"].stdout
    rows = Path(said["report"].stdout.split(": ")[1].strip()).with_name("rows.csv")
    assert set(pd.read_csv(rows)["cell_id"]) == ids
    assert not verify_bundle(tmp_path / "b.zip")[0].problems
    assert own.exists(), "a report in a folder of the user's removed the user's figures"
    if not given:
        assert len(library.results(store.url, grid, set_=())) == len(stores.cells)
        every = json.loads(invoke("cells", grid, "--store", store.url, "--json", "--set", ""))
        assert len(every) == len(stores.cells)


def test_a_metric_is_computed_from_stored_predictions(stores: Stores, whole: Store) -> None:
    """The command, the library and the report have the same scores, and no cell is run again."""
    frame = library.results(whole.url, stores.grid_file, metric="macro_f1")
    found = library.predictions(whole.url, stores.grid_file)
    for row in frame.to_dict("records"):
        split = found[row["cell_id"], row["evaluated_on"]]
        expected = f1_score(split.labels, split.predicted, average="macro")
        assert row["score"] == pytest.approx(100 * expected, abs=1e-9)
    same = pd.read_csv(io.StringIO(printed(str(stores.grid_file), "--store", whole.url, "--metric", "macro_f1")))
    pd.testing.assert_frame_equal(same, frame, check_dtype=False)
    (answer, *_) = library.verdict(whole.url, stores.grid_file, metric="macro_f1")
    assert answer.metric == "macro_f1"
    folder = Path(whole.url, "reports", f"{stores.grid_file.stem}-macro_f1")
    assert str(folder) in invoke("report", stores.grid_file, "--store", whole.url, "--metric", "macro_f1")
    assert {record["metric"] for record in json.loads((folder / "verdict.json").read_text())} == {"macro_f1"}


def test_metrics_have_intervals(stores: Stores, whole: Store) -> None:
    table = pd.read_csv(io.StringIO(printed(str(stores.grid_file), "--store", whole.url, "--metrics")))
    for name in ("balanced_accuracy", "macro_f1", "worst_class", "brier"):
        assert (table[f"{name}_low"] <= table[name]).all()
        assert (table[name] <= table[f"{name}_high"]).all()
