"""The content of tracked runs: numbers, names and tags."""

import statistics
from dataclasses import replace

import pytest

from bolt.protocol import PUBLISHED
from orchestrator.report import GridResults
from orchestrator.store.results import Evaluation, Result
from orchestrator.tracking.runs import Labels, cell_run
from orchestrator.tracking.summaries import summary_runs
from orchestrator.tracking.tracker import Tracker
from tests.helpers import cells as samples
from tests.orchestrator.tracking.examples import GRID, describe, metrics_of, some_results


def test_a_cell_without_the_target_among_its_datasets_is_headed_by_their_mean() -> None:
    result = samples.result(samples.cell())
    others = tuple(
        Evaluation(name, value, 1, 2, 40.0, (), None, None) for name, value in (("inks", 50.0), ("odd@name", 70.0))
    )
    # A setting that is called like a grouping does not overwrite it.
    cell = replace(result.cell, method=replace(result.cell.method, settings=(("seed", 7),)))
    result = replace(result, cell=cell, evaluations=others)
    assert result.accuracies == (60.0, 40.0)
    run = cell_run(result, describe(result), GRID)
    metrics = metrics_of(run)
    found = [metrics[name, 0] for name in ("accuracy", "accuracy/inks", "accuracy/odd_name")]
    assert found == [60.0, 50.0, 70.0]
    assert (run.params["seed"], run.params["setting_seed"]) == ("0", "7")


SWITCHED = "strict+schedule_offset=True,sigma_sign=relu"  # tests/e2e/test_switches.py tracks every switch


@pytest.mark.parametrize("name", [SWITCHED, "../x", "a//b", "..", ".", "/x", "", "ä (1 %)", "x" * 300])
def test_mlflow_accepts_every_name(tracker: Tracker, name: str) -> None:
    cell = samples.cell(1, method="bolt")
    result = replace(
        samples.result(cell),
        cell=replace(cell, protocol=replace(cell.protocol, name=name or "strict")),
        details={name: 0.5, f"{name}text": "text"},
        curves={name: (1.0, 2.0)},
    )
    other = samples.result(samples.cell(1, method="lora"))
    done = tracker.sync([result, other], lambda one: Labels(name or "bolt", "Glyphs"))
    assert done.added > 2
    assert tracker.sync([result, other], lambda one: Labels(name or "bolt", "Glyphs")).added == 0


def test_aggregates_are_what_a_statistician_would_write() -> None:
    results = some_results()
    runs = {run.key: run for run in summary_runs(results, describe, GRID)}
    aggregate = runs["aggregate:fewshot/strict/leave_one_out/tiny/glyphs/bolt/digits/4"]
    values = [60.0 + seed for seed in (1, 2, 3)]
    assert metrics_of(aggregate) == {
        ("accuracy_mean", 0): statistics.mean(values),
        ("accuracy_std", 0): statistics.stdev(values),
        ("n", 0): 3.0,
        ("gain_over_zero_shot", 0): pytest.approx(12.0),
        ("accuracy_published", 0): 60.0,
        ("delta_published", 0): pytest.approx(2.0),
    }
    curve = metrics_of(runs["curve:fewshot/strict/leave_one_out/tiny/glyphs/tip_adapter"])
    points = {step: value for (name, step), value in curve.items() if name == "accuracy_by_shots"}
    assert points == {1: pytest.approx(58.0), 4: pytest.approx(61.0)}
    assert metrics_of(runs[f"grid:{GRID}"])["accuracy/bolt", 0] == pytest.approx(61.0)
    for run in summary_runs(results[:1], describe, GRID):  # one seed has no deviation
        assert not [name for name, _, _ in run.metrics if name.endswith("_std")]


def test_means_and_curves_say_what_the_verdicts_say() -> None:
    """Bolt leads by 20 points on six datasets at k = 4, and equals the other method at k = 1."""
    results = [
        samples.result(
            samples.cell(seed, method=method, dataset=dataset, shots=shots),
            accuracy=50.0 + number + 0.1 * seed + (20.0 + 0.5 * number) * (method == "bolt" and shots == 4),
        )
        for method in ("bolt", "tip_adapter")
        for number, dataset in enumerate(("a", "b", "c", "d", "e", "f"))
        for shots in (1, 4)
        for seed in (1, 2)
    ]
    cells = [result.cell for result in results]
    answers = GridResults(results=results, planned=cells, label_of=lambda cell: cell.method.name).verdicts
    (answer,) = answers
    runs = summary_runs(results, describe, GRID, verdicts=answers)
    means = {(run.params["method"], int(run.params["k"])): run for run in runs if run.kind == "mean"}
    assert means.keys() == {(method, k) for method in ("bolt", "tip_adapter") for k in (1, 4)}
    for verdict in answer.verdicts:
        for score in verdict.methods:
            run = means[score.method, verdict.k]
            assert metrics_of(run)["accuracy_mean", 0] == pytest.approx(score.mean, abs=1e-4)
            assert metrics_of(run)["n", 0] == 6
            assert run.tags["in_best_set"] == ("yes" if score.in_best_set else "no")
            assert run.tags["recommended"] == ("yes" if score.method == verdict.recommended else "no")
            assert run.tags["verdict"] == verdict.statement()
    assert means["tip_adapter", 4].tags["in_best_set"] == "no"
    curves = {run.params["method"]: run.tags["in_best_set"] for run in runs if run.kind == "curve"}
    assert curves == {"bolt": "k = 1, 4", "tip_adapter": "k = 1"}


def test_a_curve_deviates_over_seeds_not_over_datasets_and_zero_shot_is_a_line() -> None:
    """It once mixed the datasets' difficulty into its deviation."""
    results = [
        samples.result(samples.cell(seed, dataset=name, shots=k), accuracy=base + seed)
        for name, base in (("easy", 90.0), ("hard", 30.0))
        for seed in (1, 2)
        for k in (1, 4)
    ]
    zero = samples.result(samples.cell(0, method="zero_shot", dataset="easy", shots=0), accuracy=50.0)
    lone = samples.result(samples.cell(3, dataset="easy", shots=4), accuracy=99.0)  # a seed without "hard"
    runs = {run.name: run for run in summary_runs([*results, lone, zero], describe, GRID)}
    bolt = metrics_of(runs["bolt · glyphs · tiny · few-shot"])
    assert bolt["accuracy_by_shots", 4] == pytest.approx(61.5)
    assert bolt["accuracy_by_shots_std", 4] == pytest.approx(statistics.stdev([61.0, 62.0]), abs=1e-4)
    assert {step for name, step in bolt if name == "accuracy_by_shots"} == {1, 4}
    line = metrics_of(runs["zero_shot · glyphs · tiny · on fewer datasets · few-shot"])  # it lacks "hard"
    steps = [("accuracy_by_shots", 1), ("accuracy_by_shots", 4), ("mean_at_k/01", 0), ("mean_at_k/04", 0)]
    assert line == dict.fromkeys(steps, 50.0)
    hard = samples.result(samples.cell(0, method="zero_shot", dataset="hard", shots=0), accuracy=20.0)
    uneven = [r for r in results if (r.cell.dataset.name, r.cell.shots) != ("hard", 4)]
    runs = {run.name: run for run in summary_runs([*uneven, zero, hard], describe, GRID)}
    line = metrics_of(runs["zero_shot · glyphs · tiny · on fewer datasets · few-shot"])  # at k = 4
    assert [line["accuracy_by_shots", k] for k in (1, 4)] == [35.0, 50.0]


def test_what_test_labels_chose_is_said_by_the_runs_name_and_tag() -> None:
    fair = some_results()
    chosen = [replace(result, cell=replace(result.cell, protocol=PUBLISHED)) for result in fair]
    for results, selects in ((fair, "false"), (chosen, "true")):
        runs = [cell_run(result, describe(result), GRID) for result in results] + summary_runs(results, describe, GRID)
        assert {run.tags["selects_on_test"] for run in runs} == {selects}
        assert {"selected on the test set" in run.name for run in runs} == {selects == "true"}


def headlines(*results: Result) -> dict[str, float]:
    """Return the grid's own numbers in MLflow."""
    return {name: value for (name, _), value in metrics_of(summary_runs(results, describe, GRID)[-1]).items()}


def test_the_grids_headline_numbers_keep_tracks_and_protocols_apart() -> None:
    fair = [samples.result(samples.cell(seed), accuracy=60.0 + seed) for seed in (1, 2)]
    chosen = [samples.result(replace(samples.cell(seed), protocol=PUBLISHED), accuracy=80.0 + seed) for seed in (1, 2)]
    adapted = samples.result(replace(samples.cell(1, shots=0), track="tta"), accuracy=99.0)
    found = headlines(*fair, *chosen, adapted)
    assert {name: value for name, value in found.items() if name.startswith("accuracy/")} == {
        "accuracy/fewshot/published/bolt": 81.5,
        "accuracy/fewshot/strict/bolt": 61.5,
        "accuracy/tta/strict/bolt": 99.0,
    }
    assert summary_runs([*fair, *chosen], describe, GRID)[-1].tags["selects_on_test"] == "true"
    assert headlines(*fair)["accuracy/bolt"] == 61.5


def test_datasets_count_alike_and_a_mean_over_fewer_has_another_name() -> None:
    easy = [samples.result(samples.cell(seed), accuracy=90.0) for seed in (1, 2, 3)]
    other = samples.result(samples.cell(1, method="tip_adapter"), accuracy=90.0)
    hard = samples.result(samples.cell(1, dataset="hard"), accuracy=50.0)  # lacks two seeds
    found = headlines(*easy, other, hard)
    assert (found["accuracy/bolt"], found["gain_over_zero_shot/bolt"]) == (70.0, 20.0)
    assert found["accuracy_on_fewer_datasets/tip_adapter"] == 90.0
    assert "gain_over_zero_shot_on_fewer_datasets/tip_adapter" in found
    assert "accuracy/tip_adapter" not in found
    later = samples.result(samples.cell(1, shots=16), accuracy=95.0)
    found = headlines(*easy, other, later)
    assert (found["accuracy/bolt"], found["accuracy_at_k_4/tip_adapter"]) == (95.0, 90.0)


def test_methods_that_mlflow_would_call_alike_keep_their_numbers() -> None:
    """Regression: MLflow kept the higher one of two metrics with one name."""
    results = [
        samples.result(samples.cell(1, method=method), accuracy=a) for method, a in (("bolt", 71.0), ("lora", 65.0))
    ]
    run = summary_runs(
        results, lambda result: Labels(f"ours{'+*'[result.cell.method.name == 'lora']}", "Glyphs"), GRID
    )[-1]
    found = [value for (name, _), value in metrics_of(run).items() if name.startswith("accuracy/ours__")]
    assert sorted(found) == [65.0, 71.0]


def test_shifted_sets_own_classes_and_details_are_tracked_as_in_the_report() -> None:
    result = samples.result(replace(samples.cell(1), track="ood"))
    target, rare, sketch = (
        replace(result.evaluations[0], dataset=name, accuracy=accuracy)
        for name, accuracy in (("digits", 90.0), ("rare", 20.0), ("sketch", 50.0))
    )
    rare = replace(rare, accuracy_own_classes=40.0)
    details: dict[str, float | int | str] = {"short_classes": 3, "alpha": 5.0, "selected_learning_rate": "0.01"}
    result = replace(result, evaluations=(target, rare, sketch), details=details)
    run = cell_run(result, describe(result), GRID)
    metrics = metrics_of(run)
    assert metrics["accuracy", 0] == 90.0
    assert metrics["accuracy_shifted", 0] == 35.0
    assert metrics["accuracy_own_classes/rare", 0] == 40.0
    assert ("accuracy_own_classes/sketch", 0) not in metrics
    assert (metrics["detail/short_classes", 0], metrics["detail/alpha", 0]) == (3.0, 5.0)
    assert run.params["detail_selected_learning_rate"] == "0.01"
    (curve,) = (run for run in summary_runs([result], describe, GRID) if run.kind == "curve")
    assert metrics_of(curve)["accuracy_by_shots", 4] == headlines(result)["accuracy/bolt"] == 35.0


def test_means_deviations_and_colours_are_there_to_be_read() -> None:
    results = [samples.result(samples.cell(seed, shots=shots), accuracy=60.0 + shots + seed / 3)
               for shots in (1, 16) for seed in (1, 2)]  # fmt: skip
    coloured = Labels("bolt", "Glyphs", None, "#d55e00")
    runs = {run.name: run for run in summary_runs(results, lambda result: coloured, GRID)}
    mean = runs["bolt · digits · k 16 · mean of 2 seeds · few-shot"]
    assert mean.tags["accuracy"] == "76.50 ± 0.24 (n = 2)"
    assert mean.tags["mlflow.runColor"] == "#d55e00"
    curve = metrics_of(runs["bolt · glyphs · tiny · few-shot"])
    assert (curve["mean_at_k/01", 0], curve["mean_at_k/16", 0]) == (61.5, 76.5)
    assert curve["std_at_k/16", 0] == pytest.approx(statistics.stdev([1 / 3, 2 / 3]), abs=1e-4)
    (alone,) = [run for run in summary_runs(results[:1], lambda result: coloured, GRID) if run.kind == "aggregate"]
    assert alone.tags["accuracy"] == "61.33 (n = 1)"
