"""The paired t-tests against SciPy, and the correction for skew by its formula."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from orchestrator.analysis.paired_tests import ALL_SKEW_FROM, Floats, hall_t, paired_t_tests, with_skew_intervals


def drawn(rows: int, datasets: int) -> Floats:
    return np.random.default_rng(datasets).normal(0.5, 1, (rows, datasets))


def transformed(row: Floats, mean: float = 0.0) -> float:
    """Hall's t of one sample against ``mean``, term by term."""
    n, deviation = len(row), row.std()
    t = (row.mean() - mean) / (deviation / math.sqrt(n - 1))
    g = min(n / ALL_SKEW_FROM, 1) * float(((row - row.mean()) ** 3).mean()) / deviation**3
    return float(t + g * t**2 / (3 * math.sqrt(n)) + g**2 * t**3 / (27 * n) + g / (6 * math.sqrt(n)))


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
        assert tests.deviation[place] == pytest.approx(row.std(ddof=1))


def test_halls_t_follows_its_formula() -> None:
    for row in np.exp(drawn(5, 9)):
        scaled = row / np.sqrt((row**2).mean())
        mean, squares, cubes = (np.array([(scaled**power).mean()]) for power in (1, 2, 3))
        assert hall_t(mean, squares, cubes, np.array([9])) == pytest.approx(transformed(row))


def test_a_corrected_interval_holds_the_means_whose_statistic_is_within_the_quantiles() -> None:
    rows = np.exp(drawn(6, 10))
    rows[5] = np.arange(10.0)  # symmetric: the correction changes nothing
    plain = paired_t_tests(rows)
    tests = with_skew_intervals(plain, rows, np.array([True] * 4 + [False, True]))
    for place in (0, 1, 2, 3):
        ends = [
            optimize.brentq(lambda mean, q=q: transformed(rows[place], mean) - q, -60, 60, xtol=1e-12)  # noqa: B023
            for q in (stats.t.ppf(0.975, 9), stats.t.ppf(0.025, 9))
        ]
        assert (tests.lower[place], tests.upper[place]) == pytest.approx(ends)
        assert tests.upper[place] - tests.difference[place] > tests.difference[place] - tests.lower[place]
    assert tests.lower[4:] == pytest.approx(plain.lower[4:])
    assert tests.upper[4:] == pytest.approx(plain.upper[4:])


def test_a_corrected_interval_holds_a_skewed_mean_more_often() -> None:
    rows = np.random.default_rng(0).exponential(size=(4000, 16))
    plain = paired_t_tests(rows)
    corrected = with_skew_intervals(plain, rows, np.ones(len(rows), dtype=bool))
    held = [float(((tests.lower <= 1) & (tests.upper >= 1)).mean()) for tests in (plain, corrected)]
    assert held[0] == pytest.approx(0.91, abs=0.02)
    assert held[1] > held[0] + 0.01


def test_missing_datasets_are_left_out() -> None:
    row = drawn(1, 9)
    holes = np.insert(row, [0, 4, 9], np.nan, axis=1)
    marked = np.array([True])
    whole, holed = (with_skew_intervals(paired_t_tests(rows), rows, marked) for rows in (row, holes))
    for field in ("difference", "lower", "upper", "p_first", "p_second", "deviation", "n"):
        assert getattr(holed, field) == pytest.approx(getattr(whole, field))


def test_rounding_errors_are_no_differences() -> None:
    rows = np.array([[0.1 + 0.2 - 0.3, 0.0, 0.0], [1.0, 0.1 + 0.9, 1.0]])
    for tests in (paired_t_tests(rows), with_skew_intervals(paired_t_tests(rows), rows, np.array([True, True]))):
        assert tests.p_first.tolist() == [1.0, 0.0]
        assert (tests.lower.tolist(), tests.upper.tolist()) == ([0.0, 1.0], [0.0, 1.0])


def test_no_dataset_or_no_pair_says_nothing() -> None:
    nothing = paired_t_tests(np.full((1, 3), np.nan))
    assert (nothing.n[0], nothing.p_first[0], nothing.p_second[0]) == (0, 1.0, 1.0)
    assert np.isnan([nothing.difference[0], nothing.lower[0], nothing.upper[0]]).all()
    assert len(paired_t_tests(np.zeros((0, 3))).p_first) == 0
