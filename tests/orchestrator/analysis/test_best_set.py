"""The best set over datasets: known answers, words, missing results and degenerate input."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orchestrator.analysis import LARGEST_COUNT
from orchestrator.analysis.best_set import JOINT_FROM, MIN_DATASETS, best_set, more_datasets, more_seeds
from orchestrator.analysis.comparison import LEVEL
from orchestrator.analysis.verdict import MANY

Scores = dict[str, dict[tuple[str, int], float]]


def scores_of(columns: Mapping[str, object], seed: int = 0) -> Scores:
    """Return ``{method: accuracies by dataset}`` under one seed."""
    return {
        method: {(f"d{place}", seed): float(value) for place, value in enumerate(np.asarray(column, dtype=float))}
        for method, column in columns.items()
    }


def spread(center: float, datasets: int = 8, by: float = 1.0, seed: int = 0) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, by, datasets)
    return list(center + noise - noise.mean())


def test_a_clear_winner_is_alone_and_names_what_beats_the_others() -> None:
    comparison = best_set(scores_of({"a": spread(70), "b": spread(60, seed=1), "c": spread(50, seed=2)}))
    assert (comparison.outcome, comparison.best_set) == ("best", ("a",))
    assert comparison.statement() == "best: a"
    assert comparison.statement({"a": "A+"}) == "best: A+"
    first, second, third = comparison.methods
    assert (first.method, first.in_best_set, first.difference, first.interval) == ("a", True, None, None)
    assert (second.method, second.in_best_set, second.beaten_by) == ("b", False, "a")
    assert second.difference == pytest.approx(-10)
    assert second.interval is not None
    assert second.interval[0] < -10 < second.interval[1] < 0
    assert third.mean == pytest.approx(50)
    assert third.n == 8


def test_methods_closer_than_a_point_are_level() -> None:
    scores = scores_of({"a": spread(70, by=0.2), "b": spread(70.1, by=0.2, seed=1)})
    comparison = best_set(scores)
    assert comparison.statement() == "level: b, a"
    assert (comparison.pairs[0].level, comparison.pairs[0].more) == (True, None)
    assert best_set(scores, smallest_difference=0.1).outcome == "undecided"


def test_an_undecided_pair_says_how_many_datasets_would_settle_it() -> None:
    """Differences that 100 datasets would not settle are small beside their scatter."""
    undecided = best_set(scores_of({"a": spread(70, by=4), "b": spread(72, by=4, seed=1)}))
    assert undecided.more is not None
    assert undecided.statement() == f"undecided: b, a; about {undecided.more} more datasets like these would settle it"
    for count, small in ((MANY, False), (MANY + 1, True), (LARGEST_COUNT, True)):
        statement = replace(undecided, pairs=tuple(replace(pair, more=count) for pair in undecided.pairs)).statement()
        assert ("small beside their scatter" in statement, str(count) in statement) == (small, not small)


@pytest.mark.parametrize(("effect", "significance"), [(0.5, 0.01), (1.0, 0.05), (2.0, 0.005)])
def test_the_number_of_datasets_has_a_power_of_80_percent(effect: float, significance: float) -> None:
    more = more_datasets(effect, 1.0, 2, significance=significance, smallest_difference=1.0)
    assert more is not None
    datasets = 2 + more
    for count, least, most in ((datasets, 0.77, 1.0), (datasets - 1, 0.0, 0.83)):
        power = stats.nct.sf(stats.t.isf(significance, count - 1), count - 1, effect * math.sqrt(count))
        assert least <= power <= most or count < MIN_DATASETS


def test_the_number_of_datasets_for_level_has_a_power_of_80_percent() -> None:
    spread_of_one = 2.0
    more = more_datasets(0.0, spread_of_one, 8, significance=0.01, smallest_difference=1.0)
    assert more is not None
    draws = np.random.default_rng(0).normal(0, spread_of_one, (4000, 8 + more))
    reach = np.abs(draws.mean(axis=1)) + stats.t.ppf(0.975, 7 + more) * stats.sem(draws, axis=1)
    assert (reach <= 1).mean() == pytest.approx(0.8, abs=0.04)
    assert more_datasets(1.0, math.nan, 1, significance=0.05, smallest_difference=1.0) is None
    assert more_datasets(0.5, 60.0, 8, significance=0.05, smallest_difference=1.0) == LARGEST_COUNT


def test_only_pairs_with_the_first_method_say_how_many_datasets_are_missing() -> None:
    """Methods b and c are nearly equal, but neither is the first method, so their pair does not count."""
    lead, noise = np.random.default_rng(1).normal(0, 3, (2, 8))
    lead, noise = lead - lead.mean(), noise - noise.mean()
    comparison = best_set(scores_of({"a": 70 + lead, "b": 68 - lead / 2, "c": 67.9 + noise}))
    by_pair = {(pair.first, pair.second): pair.more or 0 for pair in comparison.pairs}
    assert comparison.more == max(by_pair["a", "b"], by_pair["a", "c"]) < by_pair["b", "c"]


def test_seeds_are_asked_for_where_they_scatter_more_than_datasets() -> None:
    def scores(by_seed: float, by_dataset: float) -> Scores:
        places = [(f"d{place}", seed) for place in range(8) for seed in (1, 2)]
        noise = np.random.default_rng(3).normal(0, by_seed, 16) + np.repeat(np.linspace(-by_dataset, by_dataset, 8), 2)
        a = dict(zip(places, 72.5 + noise - noise.mean(), strict=True))
        return {"a": a, "b": dict.fromkeys(places, 70.0)}

    seeds = best_set(scores(8, 0))
    assert seeds.more_seeds is not None
    assert f"about {seeds.more_seeds} more seeds on each dataset" in seeds.statement()
    datasets = best_set(scores(1, 7))
    assert datasets.more_seeds is None
    assert "more datasets like these" in datasets.statement()


def test_the_number_of_seeds_has_a_power_of_80_percent() -> None:
    by_dataset, by_seed, lead, n = 1.0, 4.0, 2.0, 8
    rng, differences = np.random.default_rng(0), np.zeros((n, 2))
    differences[:] = by_seed / math.sqrt(2) * np.array([1, -1])  # a deviation of by_seed between the seeds
    deviation = math.sqrt(by_dataset**2 + by_seed**2 / 2)
    more = more_seeds(lead, deviation, differences, significance=0.045, smallest_difference=1.0)
    assert more is not None
    draws = rng.normal(lead, math.hypot(by_dataset, by_seed / math.sqrt(2 + more)), (4000, n))
    assert (stats.ttest_1samp(draws, 0, axis=1, alternative="greater").pvalue <= 0.045).mean() >= 0.78
    assert more_seeds(lead, 6.0, differences, significance=0.045, smallest_difference=1.0) is None, (
        "the datasets alone scatter too much"
    )


def test_methods_are_compared_on_the_datasets_and_seeds_that_both_have() -> None:
    """Method b ran with seed 1 only, which is 10 points easier: compared on all seeds it would win."""
    scores: Scores = defaultdict(dict)
    for place, score in enumerate(spread(70)):
        scores["a"][f"d{place}", 0], scores["a"][f"d{place}", 1] = score - 10, score + 10
        scores["b"][f"d{place}", 1] = score + 5 + place / 10
    comparison = best_set(scores)
    assert comparison.best_set == ("a",)
    loser = comparison.methods[1]
    assert loser.difference == pytest.approx(-5 + np.mean(np.arange(8) / 10))
    assert loser.mean > comparison.methods[0].mean
    assert [score.seeds for score in comparison.methods] == [2, 1]


def test_a_method_without_seeds_is_compared_with_every_seed() -> None:
    scores: Scores = {"zero": {}, "a": {}}
    for place, score in enumerate(spread(60)):
        scores["zero"][f"d{place}", 0] = score
        for seed in (1, 2):
            scores["a"][f"d{place}", seed] = score + 3 + seed + place / 10
    comparison = best_set(scores, without_seeds={"zero"})
    assert comparison.best_set == ("a",)
    assert comparison.methods[1].difference == pytest.approx(-4.85)
    assert [score.seeds for score in comparison.methods] == [2, 0]
    assert best_set(scores).pairs[0].n == 0, "without the hint they share no seed"


def test_missing_and_nan_scores_leave_a_method_undecided_not_out() -> None:
    scores = scores_of({"a": spread(70), "b": spread(50, seed=1), "c": spread(60, seed=2)})
    for place in range(5):
        del scores["b"][f"d{place}", 0]
        scores["c"][f"d{place}", 0] = math.nan
    comparison = best_set(scores)
    assert comparison.best_set[0] == "a", "the method with every dataset comes first"
    assert set(comparison.best_set) == {"a", "b", "c"}
    assert {score.method: score.n for score in comparison.methods} == {"a": 8, "b": 3, "c": 3}
    assert comparison.outcome == "undecided"


@pytest.mark.parametrize("datasets", [1, 2, MIN_DATASETS - 1])
def test_few_datasets_exclude_nothing(datasets: int) -> None:
    comparison = best_set(scores_of({"a": [90.0] * datasets, "b": [10.0] * datasets}))
    assert comparison.best_set == ("a", "b")
    (pair,) = comparison.pairs
    assert (pair.difference, pair.interval, pair.n) == (80.0, None, datasets)
    assert pair.more == (None if datasets == 1 else MIN_DATASETS - datasets)
    assert ("too few" in comparison.statement()) == (datasets == 1)


def test_a_constant_lead_wins_and_equal_methods_are_level_unless_datasets_are_few() -> None:
    comparison = best_set(scores_of({"a": [70.0] * 8, "b": [70.0] * 8, "c": [68.0] * 8}))
    assert comparison.statement() == "level: a, b"
    assert comparison.pairs[0].interval == (0.0, 0.0)
    few = best_set(scores_of({"a": [70.0, 80.0, 90.0], "b": [70.0, 80.0, 90.0]}))
    assert (few.outcome, few.more) == ("undecided", MIN_DATASETS - 3)


def test_one_method_and_none() -> None:
    assert best_set(scores_of({"a": spread(70)})).statement() == "one method only: a"
    assert best_set({}).best_set == ()
    assert best_set({"a": {}, "b": {("d", 0): math.nan}}).outcome == "single"


def test_the_test_is_chosen_by_the_number_of_datasets() -> None:
    """One huge difference hides the lead from the t-test on seven datasets, but not from the test by flips."""
    lead = [*np.linspace(1, 2, JOINT_FROM - 2), 80.0]
    scores = scores_of({"a": np.array(lead) + 10, "b": np.full(len(lead), 10.0)})
    assert best_set(scores).outcome == "undecided"
    for method, score in (("a", 11.4), ("b", 10.0)):
        scores[method]["one more", 0] = score
    assert best_set(scores).best_set == ("a",)


def test_contradicting_tests_exclude_nothing() -> None:
    """On disjoint datasets a beats b, b beats c and c beats a."""
    scores: Scores = defaultdict(dict)
    for group, (winner, loser) in enumerate((("a", "b"), ("b", "c"), ("c", "a"))):
        for place in range(8):
            scores[winner][f"{group}{place}", 0], scores[loser][f"{group}{place}", 0] = 70 + place / 10, 60.0
    assert set(best_set(scores).best_set) == {"a", "b", "c"}


def test_a_method_that_skewed_rivals_exclude_is_named_as_doubtful() -> None:
    """Each rival of a is a little better on most datasets, and much worse on two datasets."""
    steady = spread(70, 16, 0.1)
    rivals = {}
    for place in range(5):
        scores = np.array(spread(72, 16, 0.2, seed=place + 1))
        scores[[place, place + 8]] -= 3
        rivals[f"m{place}"] = scores
    comparison = best_set(scores_of({"a": steady, **rivals}))
    doubtful = [score for score in comparison.methods if score.doubtful]
    assert [(score.method, score.in_best_set) for score in doubtful] == [("a", False)]
    assert "less sure than 95 %" in comparison.statement({"a": "A+"})
    assert "that A+ is out" in comparison.statement({"a": "A+"})
    mirrored = best_set(scores_of({"a": spread(78, 16, 0.1), **rivals}))
    assert mirrored.best_set == ("a",)
    assert not mirrored.methods[-1].doubtful


def test_methods_that_are_out_stop_counting() -> None:
    """On 5 datasets, b loses to a at p = 0.015, which excludes b only after four of the six methods are excluded."""
    lead = np.array([0.4, 1.1, 2.0, 2.6, 3.1])
    far = {f"m{i}": spread(30, datasets=5, seed=i) for i in range(4)}
    p = stats.ttest_1samp(lead, 0, alternative="greater").pvalue
    assert LEVEL / 5 < p < LEVEL
    comparison = best_set(scores_of({"a": 70 + lead, "b": np.full(5, 70.0), **far}))
    assert comparison.best_set == ("a",)
    assert {score.beaten_by for score in comparison.methods[1:]} <= {"a", "b"}


def test_pairs_on_few_shared_datasets_are_tested_beside_the_joint_test() -> None:
    """Method b ran on 6 of 10 datasets, so a t-test excludes it. The joint test on 10 datasets excludes c."""
    columns = {"a": spread(70, 10, 0.5), "b": spread(64, 10, 0.5, seed=1), "c": spread(67, 10, 0.5, seed=2)}
    scores = scores_of(columns)
    for place in range(4):
        del scores["b"][f"d{place}", 0]
    comparison = best_set(scores)
    assert comparison.best_set == ("a",)
    assert {score.method: score.n for score in comparison.methods} == {"a": 10, "b": 6, "c": 10}
