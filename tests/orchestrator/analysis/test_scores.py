"""Rows, their scores, and means over seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.analysis.metrics import METRICS, Answers
from orchestrator.analysis.scores import check_scored
from orchestrator.analysis.seed_means import seed_means, summarize
from orchestrator.report.analysis import GridResults
from orchestrator.report.tables.accuracy import main_table
from orchestrator.store.predictions import StoredPredictions, checked_predictions
from orchestrator.store.results import Result
from orchestrator.tracks import MetricName
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.helpers.small_results import DATASETS

METHODS = {"zero_shot": 0.5, "bolt": 0.9, "lora": 0.7}


def measured(track: str = "fewshot") -> tuple[list[Result], dict[str, tuple[StoredPredictions, ...]]]:
    """Return results of three methods on eight datasets. LoRA is better on the frequent class alone."""
    results, predictions = [], {}
    for name, share in METHODS.items():
        for number, dataset in enumerate(DATASETS):
            frequent = round(150 * (share - 0.05 if name != "lora" else 0.95)) + number % 3
            rare = round(50 * (share if name != "lora" else 0.2)) - number % 2
            cell = samples.cell(0 if name == "zero_shot" else 1, method=name, dataset=dataset)
            cell = replace(cell, track=track, shots=0 if name == "zero_shot" else 4)
            one = samples.result(cell)
            (scored,) = one.evaluations
            scored = replace(
                scored, accuracy=(frequent + rare) / 2, correct=frequent + rare, total=200,
                per_class=((frequent, 150), (rare, 50), (0, 0)), accuracy_zero_shot=ZERO_SHOT[number],
            )  # fmt: skip
            one, content = samples.predictions(replace(one, evaluations=(scored,)), seed=number)
            results.append(one)
            predictions[one.cell.id] = checked_predictions(content, one)
    return results, predictions


ZERO_SHOT = [(round(150 * 0.45) + n % 3 + 25 - n % 2) / 2 for n in range(len(DATASETS))]


def arranged(metric: MetricName | None, track: str = "fewshot", lost: int = 0) -> GridResults:
    """Return the arranged results by a metric. The first ``lost`` results have no predictions."""
    results, predictions = measured(track)

    def read(asked: Sequence[Result]) -> Mapping[str, Sequence[StoredPredictions]]:
        without = {one.cell.id for one in results[:lost]}
        return {one.cell.id: predictions[one.cell.id] for one in asked if one.cell.id not in without}

    return GridResults(results=results, label_of=lambda cell: cell.method.name, read_predictions=read, metric=metric)


@pytest.mark.parametrize("metric", METRICS)
def test_rows_have_the_score_of_their_predictions(metric: MetricName) -> None:
    grid, (_, predictions) = arranged(metric), measured()
    frozen = {row.dataset: row for row in grid.rows if row.method == "zero_shot"}
    for row in grid.rows:
        (split,) = predictions[row.cell_id]
        assert row.score == pytest.approx(METRICS[metric].of(Answers.of(split)), abs=1e-9)
        assert (row.metric, row.score_zero_shot) == (metric, pytest.approx(frozen[row.dataset].score, abs=1e-9))
        assert row.accuracy == pytest.approx(100 * split.correct.mean())


@pytest.mark.parametrize("metric", METRICS)
def test_the_verdict_compares_the_scores(metric: MetricName) -> None:
    """The first method is the best, and leads of better methods are positive, even if lower values are better."""
    grid = arranged(metric)
    answer = next(answer for answer in grid.verdicts if not answer.dataset)
    comparison = answer.verdicts[0]
    means = {m: np.mean([row.score for row in grid.rows if row.method == m]) for m in METHODS}
    assert answer.metric == answer.records()[0]["metric"] == metric
    assert {score.method: pytest.approx(score.mean) for score in comparison.methods} == means
    sign = -1 if METRICS[metric].lower_is_better else 1
    for score in comparison.methods[1:]:
        assert score.difference == pytest.approx(sign * (means[score.method] - means[comparison.methods[0].method]))
    (group,) = grid.groups
    table = main_table(grid, group)
    best = [row[1].value for row in table.rows if row[1].highlight == "best"]
    assert best == [pytest.approx(max(means.values(), key=lambda mean: sign * mean))]
    assert METRICS[metric].title in table.note


def test_a_method_that_forgets_the_rare_class_loses_by_balanced_accuracy() -> None:
    worst_class = arranged("worst_class").verdicts[0].verdicts[0]
    answer = arranged(None, track="imbalanced").verdicts[0]
    assert (answer.metric, arranged(None).verdicts[0].metric) == ("balanced_accuracy", "accuracy")
    balanced = answer.verdicts[0]
    assert balanced.best_set == worst_class.best_set == ("bolt",)
    assert balanced.methods[1].interval is not None


def test_results_without_predictions_are_named() -> None:
    grid = arranged("macro_f1", lost=3)
    assert grid.unscored.startswith("3 results")
    assert len(grid.rows) == len(measured()[0]) - 3
    assert not arranged("balanced_accuracy", lost=3).unscored
    assert all(row.score_zero_shot is None for row in grid.rows if row.dataset in DATASETS[:3])
    with pytest.raises(UserError, match="macro_f1"):
        check_scored(arranged("macro_f1", lost=100).rows, "macro_f1", "demo")


def test_gains_are_improvements() -> None:
    signs: dict[MetricName, int] = {"macro_f1": 1, "brier": -1}
    for metric, sign in signs.items():
        for row in (row for row in arranged(metric).rows if row.method == "bolt"):
            assert row.score_gain == pytest.approx(sign * (row.score - (row.score_zero_shot or math.nan)))


def test_mean_and_sample_deviation_by_hand() -> None:
    summary = summarize([1.0, 2.0, 4.0])
    assert (summary.n, summary.mean) == (3, pytest.approx(7 / 3))
    assert summary.std == pytest.approx(math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert summarize([3.0]).std is None
    with pytest.raises(ValueError, match="nothing"):
        summarize([])


def test_domain_means_are_taken_per_seed_over_complete_seeds_only() -> None:
    scores = {"a": {0: 10.0, 1: 20.0, 2: 90.0}, "b": {0: 30.0, 1: 60.0}}
    assert seed_means(scores, ["a", "b"]) == {0: 20.0, 1: 40.0}
    assert seed_means(scores, ["a", "b", "c"]) == {}
    assert seed_means(scores, []) == {}
