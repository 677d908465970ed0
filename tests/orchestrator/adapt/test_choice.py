"""The choice by held-out predictions, and the accuracy to expect."""

import numpy as np
import pytest

from orchestrator.adapt.choice import choose
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
    """Twenty coins: the best has more heads than half, and a new throw has half of them."""
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
