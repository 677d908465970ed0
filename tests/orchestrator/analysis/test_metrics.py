"""Metrics of stored predictions: scikit-learn's values, values by hand, and ties."""

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, balanced_accuracy_score, brier_score_loss, f1_score, recall_score

from benchmarks.coverage import metric_coverage
from orchestrator.analysis.metric_intervals import WITHOUT_INTERVAL, intervals
from orchestrator.analysis.metrics import METRICS, Answers, accuracy_of_surest, calibration_error, recalls, share_at_95
from orchestrator.store.predictions import StoredPredictions
from orchestrator.tracks import MetricName


def drawn(seed: int, classes: int = 7, images: int = 400) -> Answers:
    """Unbalanced labels, and predictions that are right more often where they are sure."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, images, p=(share := np.arange(1, classes + 1) ** 2.0) / share.sum())
    probability = rng.integers(40, 256, images)
    right = rng.random(images) < probability / 255
    predicted = np.where(right, labels, rng.integers(0, classes, images))
    stored = StoredPredictions("d", labels.astype(np.uint16), predicted.astype(np.uint16), probability.astype(np.uint8))
    return Answers.of(stored)


@pytest.mark.parametrize("seed", range(4))
def test_class_metrics_equal_those_of_scikit_learn(seed: int) -> None:
    answers = drawn(seed)
    truth, predicted = answers.labels_N, answers.predicted_N
    expected: dict[MetricName, float] = {
        "accuracy": accuracy_score(truth, predicted),
        "balanced_accuracy": balanced_accuracy_score(truth, predicted),
        "macro_f1": f1_score(truth, predicted, average="macro"),
        "worst_class": recall_score(truth, predicted, average=None, labels=np.unique(truth)).min(),
    }
    for name, value in expected.items():
        metric = METRICS[name]
        assert metric.of(answers) == pytest.approx(100 * value, abs=1e-9), name
        if metric.of_recalls is not None:
            assert metric.of_recalls(recalls(answers)) == pytest.approx(100 * value, abs=1e-9), name


@pytest.mark.parametrize("seed", range(4))
def test_calibration_equals_its_definition(seed: int) -> None:
    answers, total = drawn(seed), 0.0
    bins = np.minimum(answers.probability_N * 15 + 1e-12, 14).astype(int)
    for number in range(15):
        inside = bins == number
        if inside.any():
            gap = answers.correct_N[inside].mean() - answers.probability_N[inside].mean()
            total += inside.mean() * abs(gap)
    assert calibration_error(answers) == pytest.approx(100 * total, abs=1e-9)
    squares = (answers.probability_N - answers.correct_N) ** 2
    assert METRICS["brier"].of(answers) == pytest.approx(100 * squares.mean(), abs=1e-9)
    of_scikit_learn = brier_score_loss(answers.correct_N, answers.probability_N)
    assert METRICS["brier"].of(answers) == pytest.approx(100 * of_scikit_learn, abs=1e-9)


@pytest.mark.parametrize(("seed", "value"), [(0, 8.248745650), (1, 6.299474835), (2, 9.562105686), (3, 7.627094537)])
def test_the_calibration_error_equals_that_of_torchmetrics(seed: int, value: float) -> None:
    """The values are from ``multiclass_calibration_error`` of torchmetrics 1.9.0 (15 bins, l1), which uses float32.

    Stored probabilities on the edge of two bins are left out, because float32 rounds them into either.
    """
    answers = drawn(seed)
    inside = np.rint(answers.probability_N * 255) % 17 != 0
    some = Answers(answers.labels_N[inside], answers.predicted_N[inside], answers.probability_N[inside])
    assert calibration_error(some) == pytest.approx(value, abs=1e-5)


def test_a_probability_of_one_is_in_the_last_bin_of_the_calibration_error() -> None:
    assert calibration_error(answers_of([1, 0], [0.95, 1.0])) == pytest.approx(47.5)


def answers_of(correct: list[int], probability: list[float]) -> Answers:
    right = np.array(correct)
    return Answers(np.zeros(len(right), dtype=np.int64), 1 - right, np.array(probability))


def test_the_surest_images_are_taken_first_and_ties_are_shared() -> None:
    answers = answers_of([1, 1, 0, 1], [0.9, 0.8, 0.5, 0.5])
    assert accuracy_of_surest(answers, 0.5) == 100
    assert accuracy_of_surest(answers, 0.75) == pytest.approx(100 * 2.5 / 3)
    assert accuracy_of_surest(answers, 1.0) == 75
    assert share_at_95(answers) == 50
    assert share_at_95(answers_of([0, 0], [0.9, 0.8])) == 0
    assert share_at_95(answers_of([1] * 19 + [0], [0.5] * 20)) == 100


def test_one_class_and_certain_predictions_have_values() -> None:
    answers = answers_of([1, 1, 1], [1.0, 1.0, 1.0])
    values = {str(name): metric.of(answers) for name, metric in METRICS.items()}
    assert values.pop("calibration_error") == values.pop("brier") == 0
    assert set(values.values()) == {100}


def test_intervals_hold_the_truth() -> None:
    """Over 150 draws of 300 images. The two metrics without intervals would fail this test."""
    found = metric_coverage(np.random.default_rng(1), 150, 300)
    assert found["share_at_95"] < 0.9
    assert all(share >= 0.95 - 0.053 for name, share in found.items() if name not in WITHOUT_INTERVAL), found


def test_intervals_of_one_image_say_nothing() -> None:
    assert set(intervals(answers_of([1], [0.5])).values()) == {None}


def test_images_that_are_all_right_do_not_promise_this_of_others() -> None:
    """The interval of the accuracy on the surest images, which are often all right, went from 100 to 100."""
    found = intervals(answers_of([1] * 40, [1.0] * 40))
    assert all(found[name] == pytest.approx((83.2, 100), abs=0.1) for name in ("accuracy_surest_50", "macro_f1"))
    assert found["brier"] == pytest.approx((0, 16.8), abs=0.1)
    labels_N = np.repeat([0, 1], [395, 5])
    rare = intervals(Answers(labels_N, labels_N, np.ones(400)))
    assert rare["balanced_accuracy"] == pytest.approx((82.9, 100), abs=0.1)  # half of it is measured on five images
    assert rare["accuracy_surest_50"] == pytest.approx((98.2, 100), abs=0.1)
