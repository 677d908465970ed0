"""The content of tracked runs: numbers, names and tags."""

import statistics
from dataclasses import replace
from typing import get_args, get_type_hints

import pytest

from bolt.protocol import PUBLISHED, STRICT, SWITCHES, Protocol
from orchestrator.report import arrange_results
from orchestrator.store.results import Evaluation
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
    result = replace(result, evaluations=others)
    assert result.accuracies == (60.0, 40.0)
    metrics = {name: value for name, value, _ in cell_run(result, describe(result), GRID).metrics}
    assert (metrics["accuracy"], metrics["accuracy/inks"], metrics["accuracy/odd_name"]) == (60.0, 50.0, 70.0)


@pytest.mark.parametrize("name", ["strict+sigma_sign=relu", "../x", "a//b", "..", ".", "/x", "", "ä (1 %)", "x" * 300])
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


def test_mlflow_accepts_every_changed_switch(tracker: Tracker) -> None:
    """The name of a changed protocol holds ``+``, ``=`` and ``,``, which MLflow takes in no name."""
    hints = get_type_hints(Protocol)
    values = {switch: get_args(hints[switch]) or (False, True) for switch in SWITCHES}
    changes = [{switch: value} for switch in SWITCHES for value in values[switch] if value != getattr(STRICT, switch)]
    assert {switch for change in changes for switch in change} == set(SWITCHES)
    protocols = [PUBLISHED, *(STRICT.with_switches(**change) for change in (*changes, changes[0] | changes[1]))]
    results = [
        samples.result(replace(samples.cell(1, method=method), protocol=protocol))
        for protocol in {protocol.name: protocol for protocol in protocols}.values()
        for method in ("bolt", "lora")
    ]
    assert len(results) == 2 * len(protocols)
    assert tracker.sync(results, describe).added > len(results)
    assert tracker.sync(results, describe).added == 0


def test_a_setting_called_like_a_grouping_does_not_overwrite_it(tracker: Tracker) -> None:
    result = samples.result(samples.cell())
    method = replace(result.cell.method, settings=(("seed", 7),))
    result = replace(result, cell=replace(result.cell, method=method))
    params = cell_run(result, describe(result), GRID).params
    assert (params["seed"], params["setting_seed"]) == ("0", "7")


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
    answers = arrange_results(results=results, planned=cells, label_of=lambda cell: cell.method.name).verdicts
    (answer,) = answers
    runs = summary_runs(results, describe, GRID, verdicts=answers)
    means = {(run.params["method"], int(run.params["k"])): run for run in runs if run.kind == "mean"}
    assert means.keys() == {(method, k) for method in ("bolt", "tip_adapter") for k in (1, 4)}
    for verdict in answer.verdicts:
        for score in verdict.comparison.methods:
            run = means[score.method, verdict.k]
            assert metrics_of(run)["accuracy_mean", 0] == pytest.approx(score.mean, abs=1e-4)
            assert metrics_of(run)["n", 0] == 6
            assert run.tags["in_best_set"] == ("yes" if score.in_best_set else "no")
            assert run.tags["recommended"] == ("yes" if score.method == verdict.recommended else "no")
            assert run.tags["verdict"] == verdict.statement()
    assert means["tip_adapter", 4].tags["in_best_set"] == "no"
    curves = {run.params["method"]: run.tags["in_best_set"] for run in runs if run.kind == "curve"}
    assert curves == {"bolt": "k = 1, 4", "tip_adapter": "k = 1"}


def test_one_seed_has_no_deviation() -> None:
    for run in summary_runs(some_results()[:1], describe, GRID):
        assert not [name for name, _, _ in run.metrics if name.endswith("_std")]


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
    bolt = {(name, step): value for name, value, step in runs["bolt · glyphs · tiny · few-shot"].metrics}
    assert bolt["accuracy_by_shots", 4] == pytest.approx(61.5)
    assert bolt["accuracy_by_shots_std", 4] == pytest.approx(statistics.stdev([61.0, 62.0]), abs=1e-4)
    assert {step for name, step in bolt if name == "accuracy_by_shots"} == {1, 4}
    line = runs["zero_shot · glyphs · tiny · on fewer datasets · few-shot"]  # it lacks "hard"
    fixed = {(name, step): value for name, value, step in line.metrics}
    assert fixed == {
        ("accuracy_by_shots", 1): 50.0,
        ("accuracy_by_shots", 4): 50.0,
        ("mean_at_k/01", 0): 50.0,
        ("mean_at_k/04", 0): 50.0,
    }


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


def test_a_mean_over_fewer_datasets_has_another_name() -> None:
    easy = [samples.result(samples.cell(1, method=method), accuracy=90.0) for method in ("bolt", "tip_adapter")]
    hard = samples.result(samples.cell(1, dataset="hard"), accuracy=50.0)
    metrics = metrics_of(summary_runs([*easy, hard], describe, GRID)[-1])
    assert metrics["accuracy/bolt", 0] == 70.0
    assert metrics["accuracy_on_fewer_datasets/tip_adapter", 0] == 90.0
    assert ("accuracy/tip_adapter", 0) not in metrics


def test_a_dataset_that_lacks_a_seed_counts_as_much_as_the_others() -> None:
    easy = [samples.result(samples.cell(seed), accuracy=90.0) for seed in (1, 2, 3)]
    hard = samples.result(samples.cell(1, dataset="hard"), accuracy=50.0)
    metrics = metrics_of(summary_runs([*easy, hard], describe, GRID)[-1])
    assert metrics["accuracy/bolt", 0] == 70.0
    assert metrics["gain_over_zero_shot/bolt", 0] == 20.0


def test_means_out_of_distribution_are_over_the_shifted_sets_as_in_the_report() -> None:
    result = samples.result(replace(samples.cell(1), track="ood"))
    scored = [
        replace(result.evaluations[0], dataset=name, accuracy=accuracy)
        for name, accuracy in (("digits", 90.0), ("rare", 20.0), ("sketch", 50.0))
    ]
    runs = summary_runs([replace(result, evaluations=tuple(scored))], describe, GRID)
    (curve,) = (run for run in runs if run.kind == "curve")
    assert metrics_of(curve)["accuracy_by_shots", 4] == 35.0
    assert metrics_of(runs[-1])["accuracy/bolt", 0] == 35.0


def test_own_classes_and_details_are_tracked() -> None:
    result = samples.result(replace(samples.cell(), track="ood"))
    target, rare, sketch = (
        replace(result.evaluations[0], dataset=name, accuracy=accuracy)
        for name, accuracy in (("digits", 90.0), ("rare", 20.0), ("sketch", 50.0))
    )
    rare = replace(rare, accuracy_own_classes=40.0)
    details: dict[str, float | int | str] = {"short_classes": 3, "alpha": 5.0, "selected_learning_rate": "0.01"}
    run = cell_run(replace(result, evaluations=(target, rare, sketch), details=details), describe(result), GRID)
    metrics = metrics_of(run)
    assert metrics["accuracy", 0] == 90.0
    assert metrics["accuracy_shifted", 0] == 35.0
    assert metrics["accuracy_own_classes/rare", 0] == 40.0
    assert ("accuracy_own_classes/sketch", 0) not in metrics
    assert (metrics["detail/short_classes", 0], metrics["detail/alpha", 0]) == (3.0, 5.0)
    assert run.params["detail_selected_learning_rate"] == "0.01"


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
