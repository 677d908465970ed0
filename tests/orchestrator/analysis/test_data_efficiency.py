"""The number of images that a method needs for another method's score, and the Pareto frontier."""

import math

import numpy as np
import pytest

from orchestrator.analysis.costs import frontier
from orchestrator.analysis.data_efficiency import images_to_reach

KS = np.array([1, 2, 4, 8, 16])


def curves(rng: np.random.Generator, datasets: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of a method that gains 5 points per doubling of k, and a target that it reaches at k = 6."""
    levels_N = 60 + 5 * rng.normal(size=datasets)
    scores_KN = levels_N + 5 * np.log2(KS)[:, None] + noise * rng.normal(size=(len(KS), datasets))
    return scores_KN, levels_N + 5 * math.log2(6) + noise * rng.normal(size=datasets)


def test_the_number_of_images_is_where_the_means_meet() -> None:
    found = images_to_reach(KS, *curves(np.random.default_rng(0), 8, 0.0))
    assert found.k == pytest.approx(6, rel=0.03)
    assert found.reached


def test_the_interval_holds_the_truth() -> None:
    """Over 300 draws, three standard errors of 95 % are 3.8 points. Adjacent points of the grid of k differ by 3 %."""
    rng, held = np.random.default_rng(1), []
    for _ in range(300):
        found = images_to_reach(KS, *curves(rng, 8, 2.0))
        held.append((found.low or 0) <= 6 * 1.03 and (found.high or math.inf) >= 6 / 1.03)
    assert np.mean(held) >= 0.912
    assert np.mean(held) < 1.0


def test_without_scatter_the_interval_is_the_number_itself() -> None:
    scores_KN, target_N = curves(np.random.default_rng(2), 8, 0.0)
    found = images_to_reach(KS, scores_KN, target_N)
    assert found.k is not None
    assert (found.low, found.high) == (found.k, found.k)


def test_what_lies_beyond_the_measured_k_is_open() -> None:
    scores_KN, target_N = curves(np.random.default_rng(2), 8, 1.0)
    better, worse = images_to_reach(KS, scores_KN, target_N - 50), images_to_reach(KS, scores_KN, target_N + 50)
    assert (better.k, better.low, better.high, better.reached) == (None, None, None, True)
    assert (worse.k, worse.low, worse.high, worse.reached) == (None, None, None, False)


@pytest.mark.parametrize(("ks", "datasets"), [((1, 16), 8), ((4,), 8), ((1, 2), 4)])
def test_too_few_k_or_datasets_say_nothing(ks: tuple[int, ...], datasets: int) -> None:
    assert images_to_reach(np.array(ks), np.ones((len(ks), datasets)), np.ones(datasets)) is None


def test_the_frontier_is_what_nothing_beats_for_less() -> None:
    scores = {"free": 50.0, "cheap": 60.0, "worse": 55.0, "dear": 70.0, "nearly": 69.0, "unknown": 99.0}
    costs = {"free": 0.0, "cheap": 1.0, "worse": 2.0, "dear": 9.0, "nearly": 8.0, "unknown": math.inf}
    assert frontier(scores, costs) == ["free", "cheap", "dear"]
    assert frontier(scores, costs | {"nearly": 7.0}) == ["free", "cheap", "nearly", "dear"]
    assert frontier({"a": 1.0}, {}) == []
