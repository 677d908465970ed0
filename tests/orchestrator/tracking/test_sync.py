"""A sync brings an MLflow experiment in line with the results, whatever it finds there."""

import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.tracking.summaries import summary_runs
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.tracks import TRACKS
from tests.helpers import cells as samples
from tests.helpers.warm_process import kill_forked_when
from tests.orchestrator.tracking.examples import GRID, SUMMARIES, describe, metrics_of, some_results


def runs_of(tracker: Tracker, kind: str) -> list[Any]:
    return list(tracker._search(f"tags.kind = '{kind}'"))


def test_a_cell_says_what_it_is_and_what_it_measured(tracker: Tracker) -> None:
    result = samples.result(samples.cell(2, shots=4), accuracy=62.5, epochs=3)
    tracker.log_result(result, describe(result))
    (run,) = runs_of(tracker, "cell")
    assert run.info.run_name == "bolt · digits · k 4 · seed 2 · few-shot"
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 2400
    assert run.data.tags["cell"] == result.cell.id
    assert run.data.tags["commit"] == "0123abc"
    assert run.data.params == {
        "track": "fewshot", "protocol": "strict", "sources_rule": "leave_one_out", "backbone": "tiny",
        "domain": "glyphs", "dataset": "digits", "method": "bolt", "k": "4", "seed": "2",
        "learning_rate": "0.001", "top_k": "8",
    }  # fmt: skip
    assert run.data.metrics == {
        "accuracy": 62.5, "accuracy_zero_shot": 50.0, "gain_over_zero_shot": 12.5, "accuracy_published": 60.0,
        "delta_published": 2.5, "trainable_parameters": 392.0, "fit_seconds": 2.0, "eval_seconds": 0.3,
        "peak_memory_mib": 120.0, "train_loss": pytest.approx(1 / 3),
    }  # fmt: skip
    history = tracker._client.get_metric_history(run.info.run_id, "train_loss")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 0.5), (3, pytest.approx(1 / 3))]


def test_syncing_twice_changes_nothing(tracker: Tracker, tmp_path: Path) -> None:
    results = some_results()
    report = tmp_path / "report"
    report.mkdir()
    (report / "index.html").write_text("<h1>demo</h1>")
    (report / ".building-1").mkdir()  # a killed process has left it
    (report / ".building-1" / "half.csv").write_text("")
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


KILLED = """
import sys
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.tracker import Tracker
from tests.orchestrator.tracking.examples import describe, some_results
Tracker(TrackingLocation(*sys.argv[1:]), "demo").sync(some_results(), describe)
"""


@pytest.mark.slow
def test_a_driver_killed_while_it_syncs_is_made_good(sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    assert kill_forked_when(sqlite_store, lambda: len(list(tracker._search(""))) >= 9, script=KILLED)
    results = some_results()
    tracker.sync(results, describe)
    tags = Counter(run.data.tags["run_key"] for run in tracker._search("attributes.status = 'FINISHED'"))
    assert len(tags) == sum(tags.values()) == len(results) + SUMMARIES
    assert len(list(tracker._search(""))) == len(results) + SUMMARIES


def test_a_meta_curve_stands_beside_the_final_accuracy_and_is_averaged_over_targets(tracker: Tracker) -> None:
    results = []
    for dataset, base in (("easy", 80.0), ("hard", 20.0)):
        for seed in (1, 2):
            cell = replace(samples.cell(seed, dataset=dataset, shots=4), track="meta")
            curve = tuple(base + 4 * seed + epoch for epoch in (1, 2, 3))
            results.append(replace(samples.result(cell, accuracy=curve[-1]), curves={"accuracy": curve}))
    tracker.sync(results, describe)
    name = f"bolt · easy · k 4 · seed 1 · {TRACKS['meta'].title}"
    run = next(run for run in runs_of(tracker, "cell") if run.info.run_name == name)
    assert run.data.metrics["accuracy"] == 87.0
    history = tracker._client.get_metric_history(run.info.run_id, "accuracy_by_epoch")
    assert [(point.step, point.value) for point in history] == [(1, 85.0), (2, 86.0), (3, 87.0)]
    points = metrics_of(next(run for run in summary_runs(results, describe, GRID) if run.kind == "curve"))
    assert [points["accuracy_by_epoch", epoch] for epoch in (1, 2, 3)] == [57.0, 58.0, 59.0]
    assert points["accuracy_by_epoch_std", 1] == pytest.approx(statistics.stdev([55.0, 59.0]), abs=1e-4)
