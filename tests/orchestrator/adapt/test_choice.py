"""The choice among candidates, the promised accuracy, the folds, and labels that may be wrong."""

import numpy as np
import pytest
import torch

from bolt.methods.common.candidates import parse_candidate
from orchestrator.adapt.choice import choose
from orchestrator.adapt.held_out_fold import threads_for
from orchestrator.adapt.suspects import suspect_labels
from orchestrator.core.intervals import wilson_interval


def test_the_most_accurate_is_chosen_and_of_equals_the_first() -> None:
    images = np.arange(100)
    found = choose([images < 60, None, images < 90, images >= 10], 4)
    assert found.best == 2
    assert found.level == (3,)
    assert found.expected is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.expected <= 90 < found.high


def test_among_equally_good_candidates_the_expectation_is_lowered_to_what_they_are_worth() -> None:
    """The best of twenty coins shows more than half heads, but half of its new throws are heads."""
    coins = np.random.default_rng(0).random((20, 200)) < 0.5
    found = choose(list(coins), 4)
    raw = 100 * coins.mean(axis=1).max()
    assert raw > 55
    assert found.expected is not None
    assert abs(found.expected - 50) < abs(raw - 50)
    assert found.optimism == pytest.approx(raw - found.expected)
    assert choose([coins[0]], 4).optimism == 0


def test_the_interval_covers_a_share_about_as_often_as_it_says() -> None:
    throws = np.random.default_rng(1).binomial(150, 0.8, size=500)
    covered = [low <= 80 <= high for low, high in (wilson_interval(count / 150, 150) for count in throws)]
    assert 0.92 < np.mean(covered) < 0.98
    assert wilson_interval(1.0, 10)[1] == pytest.approx(100)
    assert wilson_interval(0.0, 10)[0] == pytest.approx(0.0)


def test_the_interval_is_wider_than_that_of_independent_images_and_reaches_further_up_than_down() -> None:
    images = np.arange(140)
    low, high = wilson_interval(0.8, 100)
    found, halves = choose([images < 112], 4), choose([images < 112], 2)
    assert (found.expected, found.low, halves.low) == pytest.approx((80, low, low))
    assert found.high == pytest.approx(100 - (100 - high) * 0.75**0.5)
    assert halves.high == pytest.approx(100 - (100 - high) * 0.5**0.5)
    assert choose([images < 112], 4, images // 10).low == pytest.approx(wilson_interval(0.8, 10)[0]), "14 series"


def test_images_of_one_series_count_as_one_throw() -> None:
    coins = np.random.default_rng(0).random((20, 40)) < 0.5
    throws, series = choose(list(coins), 4), choose(list(coins.repeat(7, axis=1)), 4, np.arange(40).repeat(7))
    assert throws == series
    assert choose(list(coins.repeat(7, axis=1)), 4).optimism < series.optimism / 2


@pytest.mark.parametrize(
    ("candidate", "threads"), [("linear_probe", 1), ("gda", 1), ("lora(rank=2)", 2), ("bolt", 2), ("coop", 2)]
)
def test_only_candidates_that_run_a_tower_compute_with_several_threads(candidate: str, threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threads_for(parse_candidate(candidate), 8):
            inside = torch.get_num_threads()
        assert (inside, torch.get_num_threads()) == (threads, 2)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("classes", [2, 10])
def test_most_planted_wrong_labels_are_found_and_no_right_ones(classes: int) -> None:
    draw = np.random.default_rng(0)
    true_N = np.arange(400) % classes
    logits_NC = draw.normal(size=(400, classes)) + 4 * np.eye(classes)[true_N]
    probabilities_NC = (np.exp(logits_NC) / np.exp(logits_NC).sum(axis=1, keepdims=True)).astype(np.float32)
    wrong = draw.choice(400, 20, replace=False)
    labels_N = true_N.copy()
    labels_N[wrong] = (true_N[wrong] + 1) % classes
    found = suspect_labels(probabilities_NC, labels_N)
    assert len(found) >= 14
    assert {row for row, _ in found} <= set(wrong.tolist())
    assert all(likely == true_N[row] for row, likely in found)


def test_confident_right_labels_are_not_suspect() -> None:
    labels_N = np.arange(30) % 3
    probabilities_NC = (0.7 * np.eye(3)[labels_N] + 0.1).astype(np.float32)
    assert suspect_labels(probabilities_NC, labels_N) == []


def test_a_class_that_is_never_sure_needs_less_to_be_likely() -> None:
    """The threshold of class 1 is 0.4, so an image of class 0 with probability 0.45 for class 1 is suspect."""
    probabilities_NC = np.array([[0.9, 0.1], [0.9, 0.1], [0.45, 0.55], [0.6, 0.4], [0.6, 0.4]], np.float32)
    assert suspect_labels(probabilities_NC, np.array([0, 0, 0, 1, 1])) == [(2, 1)]
