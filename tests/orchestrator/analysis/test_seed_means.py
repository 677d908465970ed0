"""Means over seeds, by hand."""

import math

import numpy as np
import pytest

from orchestrator.analysis.seed_means import seed_means, summarize


def test_mean_and_sample_deviation_by_hand() -> None:
    summary = summarize([1.0, 2.0, 4.0])
    assert summary.mean == pytest.approx(7 / 3)
    assert summary.std == pytest.approx(math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2))
    assert summary.std == pytest.approx(np.std([1.0, 2.0, 4.0], ddof=1))
    assert summary.n == 3


def test_one_seed_has_no_deviation_and_none_no_summary() -> None:
    assert summarize([3.0]).std is None
    with pytest.raises(ValueError, match="nothing"):
        summarize([])


def test_domain_means_are_taken_per_seed_over_complete_seeds_only() -> None:
    scores = {"a": {0: 10.0, 1: 20.0, 2: 90.0}, "b": {0: 30.0, 1: 60.0}}
    assert seed_means(scores, ["a", "b"]) == {0: 20.0, 1: 40.0}
    assert seed_means(scores, ["a", "b", "c"]) == {}
    assert seed_means(scores, []) == {}
