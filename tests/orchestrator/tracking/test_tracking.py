"""MLflow as a view of the results, on real SQLite stores."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import psutil
import pytest
from rich.console import Console

from bolt.protocol import PUBLISHED
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracking import retry
from orchestrator.tracking.background import BackgroundTracker
from orchestrator.tracking.client import move_aside, open_client
from orchestrator.tracking.errors import NoAnswer, classify_tracking_error
from orchestrator.tracking.experiment import open_experiment
from orchestrator.tracking.retry import RetryPolicy, retry_sync
from orchestrator.tracking.runs import Labels, TrackedRun, accuracies, cell_run
from orchestrator.tracking.summaries import summary_runs
from orchestrator.tracking.tracker import SyncReport, Tracker, ui_links
from orchestrator.tracking.ui import VIEWS, experiment_tags, serve_ui, ui_command
from orchestrator.util.errors import UserError
from tests.conftest import GiveDatabase
from tests.helpers import cells as samples
from tests.helpers.waiting import PATIENCE, wait_for

pytestmark = [
    pytest.mark.xdist_group("mlflow"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated:DeprecationWarning"),  # in MLflow
]

GRID = "demo"


def describe(result: Result) -> Labels:
    return Labels(result.cell.method.name, "Glyphs", 60.0 if result.cell.method.name == "bolt" else None)


def some_results() -> list[Result]:
    """Two methods, two datasets, two k, three seeds."""
    return [
        samples.result(
            samples.cell(seed, method=method, dataset=dataset, shots=shots), accuracy=50.0 + shots + seed + len(dataset)
        )
        for method in ("bolt", "tip_adapter")
        for dataset in ("digits", "inks")
        for shots in (1, 4)
        for seed in (1, 2, 3)
    ]


SUMMARIES = 8 + 2 + 1


@pytest.fixture
def place(give_database: GiveDatabase, tmp_path: Path) -> tuple[str, str]:
    """Tracking URI and artifact root of a store of the test's own."""
    database = tmp_path / "mlflow" / "mlflow.db"
    give_database(database)
    return f"sqlite:///{database}", str(tmp_path / "mlflow" / "artifacts")


@pytest.fixture
def tracker(place: tuple[str, str]) -> Tracker:
    return Tracker(*place, GRID)


def runs_of(tracker: Tracker, kind: str) -> list[Any]:
    return list(tracker._search(f"tags.kind = '{kind}'"))


def test_a_cell_says_what_it_is_and_what_it_measured(tracker: Tracker) -> None:
    result = samples.result(samples.cell(2, shots=4), accuracy=62.5, epochs=3)
    tracker.log_result(result, describe(result))
    (run,) = runs_of(tracker, "cell")
    assert run.info.run_name == "bolt digits k4 s2"
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 2400
    assert run.data.tags["cell"] == result.cell.id
    assert run.data.tags["commit"] == "0123abc"
    assert run.data.params == {
        "track": "fewshot",
        "protocol": "strict",
        "sources_rule": "leave_one_out",
        "backbone": "tiny",
        "domain": "glyphs",
        "dataset": "digits",
        "method": "bolt",
        "k": "4",
        "seed": "2",
        "learning_rate": "0.001",
        "top_k": "8",
    }
    assert run.data.metrics == {
        "accuracy": 62.5,
        "accuracy_zero_shot": 50.0,
        "gain_over_zero_shot": 12.5,
        "accuracy_published": 60.0,
        "delta_published": 2.5,
        "trainable_parameters": 392.0,
        "fit_seconds": 2.0,
        "eval_seconds": 0.3,
        "peak_memory_mib": 120.0,
        "train_loss": pytest.approx(1 / 3),
    }
    history = tracker._client.get_metric_history(run.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_a_cell_without_the_target_among_its_datasets_is_headed_by_their_mean() -> None:
    result = samples.result(samples.cell())
    others = tuple(Evaluation(name, value, 1, 2, 40.0, ()) for name, value in (("inks", 50.0), ("odd@name", 70.0)))
    result = replace(result, evaluations=others)
    assert accuracies(result) == (60.0, 40.0)
    metrics = {name: value for name, value, _ in cell_run(result, describe(result), GRID).metrics}
    assert (metrics["accuracy"], metrics["accuracy/inks"], metrics["accuracy/odd_name"]) == (60.0, 50.0, 70.0)


def test_a_setting_called_like_a_grouping_does_not_overwrite_it(tracker: Tracker) -> None:
    result = samples.result(samples.cell())
    method = replace(result.cell.method, settings=(("seed", 7),))
    result = replace(result, cell=replace(result.cell, method=method))
    params = cell_run(result, describe(result), GRID).params
    assert (params["seed"], params["setting_seed"]) == ("0", "7")


def test_syncing_twice_changes_nothing(tracker: Tracker, tmp_path: Path) -> None:
    results = some_results()
    report = tmp_path / "report"
    report.mkdir()
    (report / "index.html").write_text("<h1>demo</h1>")
    first = tracker.sync(results, describe, report=report)
    assert first == SyncReport(added=len(results) + SUMMARIES, kept=0, removed=0)
    before = {run.info.run_id for run in tracker._search("")}
    for verify in (False, True):
        assert tracker.sync(results, describe, report=report, verify=verify) == SyncReport(0, first.added, 0)
    assert {run.info.run_id for run in tracker._search("")} == before
    (grid,) = runs_of(tracker, "grid")
    assert [item.path for item in tracker._client.list_artifacts(grid.info.run_id, "report")] == ["report/index.html"]
    (report / "index.html").write_text("<h1>demo, longer</h1>")
    assert tracker.sync(results, describe, report=report) == SyncReport(1, first.added - 1, 1)


def test_a_new_cell_renews_only_what_sums_it_up(tracker: Tracker) -> None:
    results = some_results()
    tracker.sync(results[:-1], describe)
    done = tracker.sync(results, describe)
    assert done == SyncReport(added=1 + 3, kept=len(results) - 1 + SUMMARIES - 3, removed=3)
    assert Counter(run.data.tags["run_key"] for run in tracker._search("")).most_common(1)[0][1] == 1


def test_what_a_killed_driver_leaves_is_cleared_away(tracker: Tracker) -> None:
    results = some_results()[:6]
    for result in results[:3]:
        tracker.log_result(result, describe(result))
    tracker.log_result(results[0], describe(results[0]))  # a double
    half = tracker._client.create_run(tracker.experiment_id, tags={"run_key": results[4].cell.id, "kind": "cell"})
    gone = samples.result(samples.cell(99))
    tracker.log_result(gone, describe(gone))  # of a cell that has no result any more
    stranger = tracker._client.create_run(tracker.experiment_id, run_name="somebody else's")
    done = tracker.sync(results, describe)
    assert done.removed == 3
    cells = runs_of(tracker, "cell")
    assert Counter(run.data.tags["cell"] for run in cells) == {result.cell.id: 1 for result in results}
    assert {run.info.status for run in cells} == {"FINISHED"}
    assert half.info.run_id not in {run.info.run_id for run in cells}
    assert tracker._client.get_run(stranger.info.run_id).info.lifecycle_stage == "active"


def test_a_result_measured_anew_replaces_its_run(tracker: Tracker) -> None:
    old = some_results()[:2]
    tracker.sync(old, describe)
    new = [replace(old[0], manifest=replace(old[0].manifest, finished_at="2026-02-02T00:00:00+00:00")), old[1]]
    tracker.sync(new, describe)
    runs = {run.data.tags["cell"]: run.info.end_time for run in runs_of(tracker, "cell")}
    assert len(runs) == 2
    assert runs[new[0].cell.id] > runs[new[1].cell.id]


def test_no_results_leave_an_empty_experiment(tracker: Tracker) -> None:
    assert tracker.sync([], describe) == SyncReport(0, 0, 0)
    tracker.sync(some_results()[:1], describe)
    assert tracker.sync([], describe).removed == 4
    assert tracker.existing() == {}


def test_aggregates_are_what_a_statistician_would_write() -> None:
    results = some_results()
    runs = {run.key: run for run in summary_runs(results, describe, GRID)}
    aggregate = runs["aggregate:fewshot/strict/leave_one_out/tiny/glyphs/bolt/digits/4"]
    values = [60.0 + seed for seed in (1, 2, 3)]
    metrics = {name: value for name, value, _ in aggregate.metrics}
    assert metrics == {
        "accuracy_mean": statistics.mean(values),
        "accuracy_std": statistics.stdev(values),
        "n": 3.0,
        "gain_over_zero_shot": pytest.approx(12.0),
        "accuracy_published": 60.0,
        "delta_published": pytest.approx(2.0),
    }
    curve = runs["curve:fewshot/strict/leave_one_out/tiny/glyphs/tip_adapter"]
    points = {step: value for name, value, step in curve.metrics if name == "accuracy_by_shots"}
    assert points == {1: pytest.approx(58.0), 4: pytest.approx(61.0)}
    grid = runs[f"grid:{GRID}"]
    assert {name: value for name, value, _ in grid.metrics}["accuracy/bolt"] == pytest.approx(61.0)


def test_one_seed_has_no_deviation() -> None:
    for run in summary_runs(some_results()[:1], describe, GRID):
        assert not [name for name, _, _ in run.metrics if name.endswith("_std")]


def test_the_writer_in_the_background_writes_everything(place: tuple[str, str]) -> None:
    results = some_results()
    stored = {result.cell.id: result for result in results}
    with BackgroundTracker(lambda: Tracker(*place, GRID), describe, stored.__getitem__) as writer:
        for result in results:
            writer.put(result.cell.id)
        assert writer.close() == ""
    assert Tracker(*place, GRID).sync(results, describe) == SyncReport(SUMMARIES, len(results), 0)


def test_a_tracking_store_that_is_away_is_said_once_and_repaired_later(place: tuple[str, str]) -> None:
    def away() -> Tracker:
        raise ConnectionError("nobody answers")

    results = some_results()[:5]
    said: list[str] = []
    stored = {result.cell.id: result for result in results}
    writer = BackgroundTracker(away, describe, stored.__getitem__, say=said.append, pauses=(0.01, 0.02))
    for result in results:
        writer.put(result.cell.id)
    wait_for(lambda: bool(said))
    problem = "the tracking store cannot be reached: ConnectionError: nobody answers"
    assert writer.close() == f"5 runs could not be tracked: {problem}"
    assert said == [f"{problem}; the grid goes on"]
    assert Tracker(*place, GRID).sync(results, describe).added == 5 + 2 + 1 + 1


OPENING = """
import sys
from orchestrator.tracking.tracker import Tracker
print(Tracker(sys.argv[1], sys.argv[2], "demo").experiment_id)
"""


def test_processes_that_open_a_missing_database_at_once_share_one(tmp_path: Path) -> None:
    arguments = [f"sqlite:///{tmp_path}/new/mlflow.db", str(tmp_path / "artifacts")]
    opening = [
        subprocess.Popen([sys.executable, "-c", OPENING, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [process.communicate(timeout=PATIENCE) for process in opening]
    assert [process.returncode for process in opening] == [0, 0], said
    assert {out for out, _ in said} == {b"1\n"}
    assert [err for _, err in said] == [b"", b""]


def _at_once(count: int, act: Callable[[int], None]) -> None:
    """Call ``act`` in as many threads, all held back until each of them is there; raises what any of them raised."""
    ready = threading.Barrier(count)

    def work(number: int) -> None:
        ready.wait()
        act(number)

    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


@pytest.mark.parametrize("left", ["nothing", "an untagged experiment", "a deleted experiment"])
def test_clients_that_open_an_experiment_at_once_share_one(place: tuple[str, str], left: str) -> None:
    """Regression: one of two first sessions at once failed, as both set the same tag; CI met it once."""
    clients = [open_client(place[0]) for _ in range(4)]
    tags = experiment_tags(["digits"])
    for experiment in ("a", "b", "c", "d", "e"):
        if left != "nothing":
            made = clients[0].create_experiment(experiment)
            if left == "a deleted experiment":
                clients[0].delete_experiment(made)
        ids: list[str] = []
        _at_once(4, lambda number: ids.append(open_experiment(clients[number], experiment, None, tags)))  # noqa: B023
        assert len(ids) == 4
        assert len(set(ids)) == 1
        there = clients[0].get_experiment(ids[0])
        assert there.lifecycle_stage == "active"
        assert {**there.tags, **tags} == there.tags


KILLED = """
import sys
from orchestrator.tracking.tracker import Tracker
from tests.orchestrator.tracking.test_tracking import describe, some_results
Tracker(sys.argv[1], sys.argv[2], "demo").sync(some_results(), describe)
"""


def test_a_driver_killed_while_it_syncs_is_made_good(place: tuple[str, str], tracker: Tracker) -> None:
    driver = subprocess.Popen([sys.executable, "-c", KILLED, *place])
    wait_for(lambda: len(list(tracker._search(""))) >= 9)
    driver.kill()
    driver.wait()
    results = some_results()
    tracker.sync(results, describe)
    tags = Counter(run.data.tags["run_key"] for run in tracker._search("attributes.status = 'FINISHED'"))
    assert len(tags) == sum(tags.values()) == len(results) + SUMMARIES
    assert len(list(tracker._search(""))) == len(results) + SUMMARIES


def test_the_experiment_brings_its_views_and_links(place: tuple[str, str], tracker: Tracker) -> None:
    found = ui_links(place[0], GRID, "http://127.0.0.1:5000")
    assert found["every cell"] == (
        f"http://127.0.0.1:5000/#/experiments/{tracker.experiment_id}/runs?viewStateShareKey=cells"
    )
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    assert "tags.kind = 'cell'" in tags["mlflow.sharedViewState.cells"]
    assert ui_links(place[0], "unheard of", "http://127.0.0.1:5000") == {
        "experiments": "http://127.0.0.1:5000/#/experiments"
    }


def test_the_server_listens_on_loopback_with_one_worker() -> None:
    command = ui_command("sqlite:////x/mlflow.db", "/x/artifacts", 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--workers") + 1] == "1"
    assert command[command.index("--default-artifact-root") + 1] == "file:///x/artifacts"


def test_a_port_that_is_taken_is_said(place: tuple[str, str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="is taken"):
            serve_ui(*place, taken.getsockname()[1])


def test_a_curve_deviates_over_seeds_not_over_datasets_and_zero_shot_is_a_line() -> None:
    """It once mixed the datasets' difficulty into its deviation."""
    easy, hard = (
        [
            samples.result(samples.cell(seed, dataset=name, shots=k), accuracy=base + seed)
            for seed in (1, 2)
            for k in (1, 4)
        ]
        for name, base in (("easy", 90.0), ("hard", 30.0))
    )
    zero = samples.cell(0, method="zero_shot", dataset="easy", shots=0)
    lone = samples.result(samples.cell(3, dataset="easy", shots=4), accuracy=99.0)  # a seed without "hard"
    runs = {
        run.name: run for run in summary_runs([*easy, *hard, lone, samples.result(zero, accuracy=50.0)], describe, GRID)
    }
    bolt = {(name, step): value for name, value, step in runs["bolt glyphs tiny"].metrics}
    assert bolt["accuracy_by_shots", 4] == pytest.approx(61.5)
    assert bolt["accuracy_by_shots_std", 4] == pytest.approx(statistics.stdev([61.0, 62.0]), abs=1e-4)
    assert {step for name, step in bolt if name == "accuracy_by_shots"} == {1, 4}
    fixed = {(name, step): value for name, value, step in runs["zero_shot glyphs tiny"].metrics}
    assert fixed == {
        ("accuracy_by_shots", 1): 50.0,
        ("accuracy_by_shots", 4): 50.0,
        ("mean_at_k/01", 0): 50.0,
        ("mean_at_k/04", 0): 50.0,
    }


def metrics_of(run: TrackedRun) -> dict[tuple[str, int], float]:
    return {(name, step): value for name, value, step in run.metrics}


def test_what_test_labels_chose_is_said_by_the_runs_name_and_tag() -> None:
    fair = some_results()
    chosen = [replace(result, cell=replace(result.cell, protocol=PUBLISHED)) for result in fair]
    for results, selects in ((fair, "false"), (chosen, "true")):
        runs = [cell_run(result, describe(result), GRID) for result in results] + summary_runs(results, describe, GRID)
        assert {run.tags["selects_on_test"] for run in runs} == {selects}
        assert {"selected on the test set" in run.name for run in runs} == {selects == "true"}


def test_the_grids_headline_numbers_keep_tracks_and_protocols_apart() -> None:
    fair = [samples.result(samples.cell(seed), accuracy=60.0 + seed) for seed in (1, 2)]
    chosen = [samples.result(replace(samples.cell(seed), protocol=PUBLISHED), accuracy=80.0 + seed) for seed in (1, 2)]
    adapted = [samples.result(replace(samples.cell(1, shots=0), track="tta"), accuracy=99.0)]
    grid = summary_runs([*fair, *chosen, *adapted], describe, GRID)[-1]
    numbers = {name: value for name, value, _ in grid.metrics if name.startswith("accuracy/")}
    assert numbers == {
        "accuracy/fewshot/published/bolt": 81.5,
        "accuracy/fewshot/strict/bolt": 61.5,
        "accuracy/tta/strict/bolt": 99.0,
    }
    assert grid.tags["selects_on_test"] == "true"
    alone = summary_runs(fair, describe, GRID)[-1]
    assert metrics_of(alone)["accuracy/bolt", 0] == 61.5


def test_own_classes_and_details_are_tracked() -> None:
    result = samples.result(replace(samples.cell(), track="ood"))
    target, rare, sketch = (
        replace(result.evaluations[0], dataset=name, accuracy=accuracy)
        for name, accuracy in (("digits", 90.0), ("rare", 20.0), ("sketch", 50.0))
    )
    rare = replace(rare, accuracy_own_classes=40.0)
    details = {"short_classes": 3, "alpha": 5.0, "selected_learning_rate": "0.01"}
    run = cell_run(replace(result, evaluations=(target, rare, sketch), details=details), describe(result), GRID)
    metrics = metrics_of(run)
    assert metrics["accuracy", 0] == 90.0
    assert metrics["accuracy_shifted", 0] == 35.0
    assert metrics["accuracy_own_classes/rare", 0] == 40.0
    assert ("accuracy_own_classes/sketch", 0) not in metrics
    assert (metrics["detail/short_classes", 0], metrics["detail/alpha", 0]) == (3.0, 5.0)
    assert run.params["detail_selected_learning_rate"] == "0.01"


def test_a_meta_curve_stands_beside_the_final_accuracy_and_is_averaged_over_targets(tracker: Tracker) -> None:
    results = []
    for dataset, base in (("easy", 80.0), ("hard", 20.0)):
        for seed in (1, 2):
            cell = replace(samples.cell(seed, dataset=dataset, shots=4), track="meta")
            curve = tuple(base + 4 * seed + epoch for epoch in (1, 2, 3))
            results.append(replace(samples.result(cell, accuracy=curve[-1]), curves={"accuracy": curve}))
    tracker.sync(results, describe)
    run = next(run for run in runs_of(tracker, "cell") if run.info.run_name == "bolt easy k4 s1")
    assert run.data.metrics["accuracy"] == 87.0
    history = tracker._client.get_metric_history(run.info.run_id, "accuracy_by_epoch")
    assert [(point.step, point.value) for point in history] == [(1, 85.0), (2, 86.0), (3, 87.0)]
    curve_run = next(run for run in summary_runs(results, describe, GRID) if run.kind == "curve")
    points = metrics_of(curve_run)
    assert [points["accuracy_by_epoch", epoch] for epoch in (1, 2, 3)] == [57.0, 58.0, 59.0]
    assert points["accuracy_by_epoch_std", 1] == pytest.approx(statistics.stdev([55.0, 59.0]), abs=1e-4)


CREATE = """
import sys
from orchestrator.tracking.tracker import Tracker
Tracker(sys.argv[1], sys.argv[2], "grid")
"""


def test_a_process_killed_while_it_creates_the_database_once_left_it_broken_for_good(tmp_path: Path) -> None:
    uri, artifacts = f"sqlite:///{tmp_path}/mlflow.db", str(tmp_path / "artifacts")
    creator = subprocess.Popen([sys.executable, "-c", CREATE, uri, artifacts])
    wait_for(lambda: bool(list(tmp_path.glob(".mlflow.db.part*"))))
    (left,) = psutil.Process(creator.pid).children()  # it makes the database, and is not killed with the creator
    left.suspend()
    creator.kill()
    creator.wait()
    assert not (tmp_path / "mlflow.db").exists()
    with open(tmp_path / "mlflow.db.lock") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # once two wrote under the passing name then
    left.resume()
    results = some_results()
    assert Tracker(uri, artifacts, GRID).sync(results, describe) == SyncReport(len(results) + SUMMARIES, 0, 0)


def with_domains() -> list[Result]:
    """Two methods in two domains."""
    return [
        replace(result, cell=replace(result.cell, domain=domain))
        for domain in ("aerial", "glyphs")
        for result in (samples.result(samples.cell(1, method=method, dataset=domain)) for method in ("bolt", "lora"))
    ]


def test_each_domain_has_a_view_of_its_own_curves(place: tuple[str, str], tracker: Tracker) -> None:
    tracker.sync(with_domains(), describe)
    found = ui_links(place[0], GRID, "http://127.0.0.1:5000")
    assert found["accuracy against k in aerial"].endswith("viewStateShareKey=curves-aerial&compareRunsMode=CHART")
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    view = json.loads(tags["mlflow.sharedViewState.curves-aerial"])
    shown = list(tracker._search(view["searchFilter"]))
    assert {(run.data.tags["kind"], run.data.params["domain"]) for run in shown} == {("curve", "aerial")}
    drawn = {chart["metricKey"] for chart in view["compareRunCharts"]}
    assert drawn >= {name for name in shown[0].data.metrics if name.startswith("accuracy_by_shots")}


def test_the_links_compare_the_methods_of_each_panel_best_first(place: tuple[str, str], tracker: Tracker) -> None:
    results = [
        replace(result, evaluations=(replace(result.evaluations[0], accuracy=90.0),))
        if result.cell.method.name == "lora"
        else result
        for result in with_domains()
    ]
    tracker.sync(results, describe)
    found = ui_links(place[0], GRID, "http://127.0.0.1:5000")
    address = found["2 methods compared, fewshot strict tiny glyphs"]
    runs = json.loads(parse_qs(address.partition("?")[2])["runs"][0])
    names = [tracker._client.get_run(run).info.run_name for run in runs]
    assert names == ["lora glyphs tiny", "bolt glyphs tiny"]


def test_views_order_and_filter_by_what_runs_have(tracker: Tracker) -> None:
    tracker.sync(some_results(), describe)
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    views = {tag: json.loads(value) for tag, value in tags.items() if tag.startswith("mlflow.sharedViewState.")}
    assert len(views) == len(VIEWS) + 1
    for view in views.values():
        runs = list(tracker._search(view["searchFilter"]))
        assert runs
        said = {f"metrics.`{name}`" for name in runs[0].data.metrics}
        said |= {f"params.`{name}`" for name in runs[0].data.params} | {f"tags.`{name}`" for name in runs[0].data.tags}
        missing = set(view["selectedColumns"]) - said
        assert missing <= {"metrics.`delta_published`", "metrics.`accuracy_by_epoch`"}  # of some runs only
        if view["orderByKey"].startswith("metrics."):
            assert view["orderByKey"] in said


def test_means_deviations_and_colours_are_there_to_be_read() -> None:
    results = [samples.result(samples.cell(seed, shots=shots), accuracy=60.0 + shots + seed / 3)
               for shots in (1, 16) for seed in (1, 2)]  # fmt: skip
    coloured = Labels("bolt", "Glyphs", None, "#d55e00")
    runs = {run.name: run for run in summary_runs(results, lambda result: coloured, GRID)}
    mean = runs["bolt digits k16 mean"]
    assert mean.tags["accuracy"] == "76.50 ± 0.24 (n = 2)"
    assert mean.tags["mlflow.runColor"] == "#d55e00"
    curve = metrics_of(runs["bolt glyphs tiny"])
    assert (curve["mean_at_k/01", 0], curve["mean_at_k/16", 0]) == (61.5, 76.5)
    assert curve["std_at_k/16", 0] == pytest.approx(statistics.stdev([1 / 3, 2 / 3]), abs=1e-4)
    (alone,) = [run for run in summary_runs(results[:1], lambda result: coloured, GRID) if run.kind == "aggregate"]
    assert alone.tags["accuracy"] == "61.33 (n = 1)"


NOW = RetryPolicy(total=3.0, first=0.02, longest=0.05, silence=60.0)
"""As a store that is away for minutes is waited for, in fractions of a second."""


def test_sync_waits_for_a_store_that_is_away_and_says_so() -> None:
    tries: list[int] = []

    def attempt(tell: Callable[[int, int], None]) -> SyncReport:
        tries.append(1)
        if len(tries) < 4:
            raise ConnectionRefusedError("nobody there")
        return SyncReport(1, 2, 3)

    assert retry_sync(attempt, Console(quiet=True), NOW) == SyncReport(1, 2, 3)
    assert len(tries) == 4


def test_sync_gives_up_a_store_that_stays_away_but_not_one_that_gets_on() -> None:
    def away(tell: Callable[[int, int], None]) -> SyncReport:
        raise ConnectionRefusedError("nobody there")

    with pytest.raises(ConnectionRefusedError):
        retry_sync(away, Console(quiet=True), NOW)
    got = 0

    def slow(tell: Callable[[int, int], None]) -> SyncReport:  # falls over after each run, for longer than `total`
        nonlocal got
        got += 1
        tell(got, 60)
        if got == 60:
            return SyncReport(60, 0, 0)
        time.sleep(0.05)
        raise ConnectionResetError("again")

    assert retry_sync(slow, Console(quiet=True), replace(NOW, total=2.0)) == SyncReport(60, 0, 0)


def test_sync_does_not_wait_for_what_will_not_pass() -> None:
    tries: list[int] = []

    def refused(tell: Callable[[int, int], None]) -> SyncReport:
        tries.append(1)
        raise sqlite3.DatabaseError("file is not a database")

    with pytest.raises(sqlite3.DatabaseError):
        retry_sync(refused, Console(quiet=True), NOW)
    assert len(tries) == 1


def test_a_store_that_never_answers_does_not_hold_sync_for_ever() -> None:
    answer = threading.Event()

    def frozen(tell: Callable[[int, int], None]) -> SyncReport:
        answer.wait(PATIENCE)
        return SyncReport(0, 0, 0)

    with pytest.raises(NoAnswer, match="no answer for"):
        retry_sync(frozen, Console(quiet=True), replace(NOW, total=0.1, silence=0.2))
    answer.set()


def test_how_far_a_long_sync_is_goes_into_a_log_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_SHOWN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(retry, "_LINE_EVERY_SECONDS", 0.0)
    screen = io.StringIO()

    def slow(tell: Callable[[int, int], None]) -> SyncReport:
        for done in range(40):
            tell(done, 40)
            time.sleep(0.02)
        return SyncReport(40, 0, 0)

    retry_sync(slow, Console(file=screen), NOW)
    assert re.search(r"MLflow: \d+ of 40 runs, \d+ s left", screen.getvalue())


@pytest.mark.parametrize("damage", ["not a database", "torn"])
def test_a_damaged_database_is_said_and_made_anew(damage: str, place: tuple[str, str], tracker: Tracker) -> None:
    results = some_results()[:3]
    tracker.sync(results, describe)
    path = Path(place[0].removeprefix("sqlite:///"))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
    size = path.stat().st_size
    with open(path, "r+b") as stream:
        stream.seek(0 if damage == "not a database" else 100)
        stream.write(b"\xff" * (size - 200 if damage == "torn" else 4096))
    with pytest.raises(sqlite3.DatabaseError) as found:
        open_client(place[0])
    assert "sync GRID --rebuild" in classify_tracking_error(found.value).message
    assert classify_tracking_error(found.value).kind == "refused"
    aside = move_aside(path)
    assert aside is not None
    assert aside.stat().st_size == size
    assert not path.exists()
