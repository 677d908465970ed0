"""The paired tests against SciPy, against enumeration, and by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from orchestrator.analysis.paired_tests import EXACT_UP_TO, Floats, PairedTests, paired_t_tests, signed_rank_tests


def drawn(rows: int, datasets: int, *, rounded: bool = False) -> Floats:
    values = np.random.default_rng(datasets).normal(0.5, 1, (rows, datasets))
    return np.round(values) if rounded else values


@pytest.mark.parametrize("datasets", [2, 5, 16])
def test_t_is_scipys_paired_t_test(datasets: int) -> None:
    rows = drawn(4, datasets)
    tests = paired_t_tests(rows)
    for place, row in enumerate(rows):
        expected = stats.ttest_1samp(row, 0, alternative="greater")
        interval = stats.ttest_1samp(row, 0).confidence_interval(0.95)
        assert tests.p_first[place] == pytest.approx(expected.pvalue)
        assert tests.p_second[place] == pytest.approx(1 - expected.pvalue)
        assert (tests.lower[place], tests.upper[place]) == pytest.approx((interval.low, interval.high))
        assert tests.effect[place] == pytest.approx(abs(row.mean() / row.std(ddof=1)))


@pytest.mark.parametrize("datasets", [6, 8, 17, 32])
def test_without_ties_the_signed_rank_test_is_scipys_exact_one(datasets: int) -> None:
    rows = drawn(4, datasets)
    tests = signed_rank_tests(rows)
    for place, row in enumerate(rows):
        for p, side in ((tests.p_first, "greater"), (tests.p_second, "less")):
            assert p[place] == pytest.approx(stats.wilcoxon(row, alternative=side, method="exact").pvalue)


def test_with_ties_and_zeros_the_signed_rank_test_counts_every_assignment_of_signs() -> None:
    for row in drawn(6, 8, rounded=True):
        own = row[row != 0]
        ranks = stats.rankdata(np.abs(own))
        sums = [
            sum(r for r, s in zip(ranks, signs, strict=True) if s)
            for signs in itertools.product([0, 1], repeat=len(own))
        ]
        expected = np.mean(np.array(sums) >= ranks[own > 0].sum() - 1e-9)
        assert signed_rank_tests(row[None]).p_first[0] == pytest.approx(expected)


def test_many_differences_use_the_normal_approximation() -> None:
    row = drawn(1, EXACT_UP_TO + 10)
    expected = stats.wilcoxon(row[0] - 0.45, alternative="greater", method="approx", correction=True).pvalue
    assert signed_rank_tests(row - 0.45).p_first[0] == pytest.approx(expected, rel=1e-6)


def test_hodges_lehmann_by_hand() -> None:
    tests = signed_rank_tests(np.array([[1.0, 2.0, 4.0, 9.0, 3.0, 5.0]]))
    averages = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement([1, 2, 4, 9, 3, 5], 2))
    assert tests.difference[0] == pytest.approx(np.median(averages))
    # P(sum of ranks <= 0) = 1 / 64 <= 2.5 % and P(sum <= 1) = 2 / 64 > 2.5 %: nothing is cut off.
    assert (tests.lower[0], tests.upper[0]) == (averages[0], averages[-1])


@pytest.mark.parametrize("datasets", [8, 16])
def test_an_interval_excludes_zero_exactly_if_its_test_does(datasets: int) -> None:
    rows = drawn(300, datasets)
    for tests in (paired_t_tests(rows), signed_rank_tests(rows)):
        significant = np.minimum(tests.p_first, tests.p_second) <= 0.025
        assert 0 < significant.mean() < 1
        np.testing.assert_array_equal(significant, (tests.lower > 0) | (tests.upper < 0))


@pytest.mark.parametrize("procedure", [paired_t_tests, signed_rank_tests])
def test_missing_datasets_are_left_out(procedure: Callable[[Floats], PairedTests]) -> None:
    row = drawn(1, 9)
    holes = np.insert(row, [0, 4, 9], np.nan, axis=1)
    whole, holed = procedure(row), procedure(holes)
    for field in ("difference", "lower", "upper", "p_first", "p_second", "effect", "n"):
        assert getattr(holed, field) == pytest.approx(getattr(whole, field))


def test_rounding_errors_are_no_differences() -> None:
    rows = np.array([[0.1 + 0.2 - 0.3, 0.0, 0.0], [1.0, 0.1 + 0.9, 1.0]])
    tests = paired_t_tests(rows)
    assert tests.p_first.tolist() == [1.0, 0.0]
    assert (tests.lower.tolist(), tests.upper.tolist()) == ([0.0, 1.0], [0.0, 1.0])
    assert signed_rank_tests(rows).p_first.tolist() == [1.0, 1 / 8]


@pytest.mark.parametrize("procedure", [paired_t_tests, signed_rank_tests])
def test_no_dataset_or_no_pair_says_nothing(procedure: Callable[[Floats], PairedTests]) -> None:
    nothing = procedure(np.full((1, 3), np.nan))
    assert (nothing.n[0], nothing.p_first[0], nothing.p_second[0]) == (0, 1.0, 1.0)
    assert np.isnan([nothing.difference[0], nothing.lower[0], nothing.upper[0]]).all()
    assert len(procedure(np.zeros((0, 3))).p_first) == 0
