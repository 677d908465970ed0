"""Racing: when methods go out, that decisions do not depend on when they are made, and the promise under peeking."""

import numpy as np
import pytest
from scipy.special import ndtri

from benchmarks.coverage import EQUAL
from benchmarks.race import SAVING, by_race, left_and_cost
from orchestrator.analysis.best_set import exclusion_test
from orchestrator.analysis.comparison import eliminate
from orchestrator.analysis.paired_tests import Floats, paired_t_tests
from orchestrator.analysis.race import RACE_LEVEL, Look, levels, planned_looks, race


def graded(methods: int = 6, datasets: int = 12, seeds: int = 1, step: float = 4.0, rng: int = 0) -> Floats:
    """Return scores of methods of which each is ``step`` points worse than the one before."""
    noise = np.random.default_rng(rng).normal(size=(methods, datasets, seeds))
    return 70 + noise - step * np.arange(methods)[:, None, None]


def test_looks_begin_with_five_datasets_and_end_with_all_seeds() -> None:
    assert planned_looks(4, 3) == (Look(4, 3),)
    assert planned_looks(7, 3) == (Look(5, 1), Look(6, 1), Look(7, 1), Look(7, 2), Look(7, 3))


def test_one_look_has_the_whole_level() -> None:
    assert levels((Look(9, 2),)) == pytest.approx((RACE_LEVEL,))


def test_the_looks_together_spend_the_level_of_a_race() -> None:
    bounds = -ndtri(np.array(levels(planned_looks(16, 1))))
    paths = np.random.default_rng(0).normal(size=(100_000, 16)).cumsum(axis=1) / np.sqrt(np.arange(1, 17))
    assert (paths[:, 4:] > bounds).any(axis=1).mean() == pytest.approx(RACE_LEVEL, abs=0.002)


def test_a_race_of_one_look_is_the_verdict_at_the_level_of_a_race() -> None:
    first, second = np.triu_indices(6, 1)
    for seed in range(20):
        scores = graded(datasets=5, step=0.7, rng=seed)
        differences = scores[first, :, 0] - scores[second, :, 0]
        verdict, _ = eliminate(6, exclusion_test(6, differences, paired_t_tests(differences)), RACE_LEVEL)
        assert list(race(scores).beaten_by_M) == list(verdict)


def test_bad_methods_go_out_early_and_a_single_winner_ends_the_race() -> None:
    raced = race(graded())
    assert list(raced.left) == [0]
    assert raced.out_at[5] == Look(5, 1)
    assert raced.beaten_by_M[5] >= 0
    assert raced.next is None
    assert raced.at.datasets < 12
    assert not raced.level


def test_what_is_measured_block_by_block_gives_the_same_decisions_as_everything_at_once() -> None:
    """Measurements that a race did not ask for change nothing either, nor does where it is interrupted."""
    for seed in range(10):
        scores = graded(datasets=10, seeds=2, step=0.6, rng=seed)
        whole, known = race(scores), np.zeros(scores.shape, dtype=bool)
        blocks = 0
        while (raced := race(np.where(known, scores, np.nan), known)).next is not None:
            known[raced.left, : raced.next.datasets, : raced.next.seeds] = True
            blocks += 1
        assert blocks > 1
        assert (raced.out_at, raced.at, raced.level) == (whole.out_at, whole.at, whole.level)
        assert list(raced.beaten_by_M) == list(whole.beaten_by_M)
        assert known.sum() == by_race(scores).cells <= scores.size


def test_nothing_is_decided_before_a_look_is_complete() -> None:
    scores = graded()
    known = np.ones(scores.shape, dtype=bool)
    known[0, 4] = False
    raced = race(scores, known)
    assert (len(raced.left), raced.at, raced.next) == (6, None, Look(5, 1))


def test_a_failed_cell_is_left_out_and_stops_nothing() -> None:
    scores = graded()
    scores[2, 1] = np.nan
    raced = race(scores, np.ones(scores.shape, dtype=bool))
    assert list(raced.left) == [0]


def test_methods_are_compared_under_the_seeds_that_both_have() -> None:
    """Under the second and third seed, which only one method has, every method would be 4 points better."""
    rng = np.random.default_rng(0)
    scores = rng.normal(70, 3, (8, 3)) + np.array([0, 4, 4]) + rng.normal(0, 0.5, (2, 8, 3))
    scores[1, :, 1:] = np.nan
    assert list(race(scores, np.ones(scores.shape, dtype=bool)).left) == [0, 1]


def test_methods_that_hardly_differ_end_the_race_as_level() -> None:
    scores = graded(methods=3, datasets=30, step=0.0) * 0.05
    raced = race(scores)
    assert raced.level
    assert len(raced.left) > 1
    assert raced.at.datasets < 30
    assert not race(scores, smallest_difference=0.001).level


def test_fewer_than_five_datasets_settle_nothing() -> None:
    raced = race(graded(datasets=4, step=20))
    assert (len(raced.left), raced.at, raced.level) == (6, Look(4, 1), False)


@pytest.mark.parametrize("name", ["normal", "skewed (exponential)"])
@pytest.mark.parametrize(("methods", "datasets", "draws"), [(9, 8, 75), (33, 8, 10), (5, 16, 20)])
def test_a_best_method_stays_although_there_are_many_looks(name: str, methods: int, datasets: int, draws: int) -> None:
    """All methods are alike and equally good, so the share that is left is the promise."""
    drawn = EQUAL[name](np.random.default_rng(1), (draws, methods, datasets))
    left_R = np.array([left_and_cost(by_race, methods, scores)[0] for scores in drawn])
    assert left_R.mean() >= 0.95 - 3 * left_R.std() / np.sqrt(draws)


def test_a_leader_is_found_with_a_part_of_the_cells() -> None:
    drawn = SAVING["a lead of 3 points"](np.random.default_rng(2), (20, 6, 16))
    stays, left, cost = np.mean([left_and_cost(by_race, 1, scores) for scores in drawn], axis=0)
    assert stays == 1
    assert left < 1.2
    assert cost < 0.6
