"""The joint test against an enumeration of all flips, written out as loops."""

import itertools
import math

import numpy as np
import pytest

from orchestrator.analysis.best_set import JOINT_FROM, best_set
from orchestrator.analysis.comparison import LEVEL
from orchestrator.analysis.sign_flips import ALL_FLIPS_UP_TO, flipped_statistics, flips, joint_p
from tests.orchestrator.analysis.test_paired_tests import transformed


def enumerated_p(rivals: list[list[float]]) -> float:
    """Return the share of flips whose largest statistic reaches the observed one. Each rival has a lead per dataset."""
    reached, observed = 0, max(transformed(np.array(lead)) for lead in rivals)
    for signs in itertools.product([1, -1], repeat=len(rivals[0])):
        largest = max(transformed(np.array([s * x for s, x in zip(signs, lead, strict=True)])) for lead in rivals)
        reached += largest >= observed - 1e-9 * max(1, abs(observed))
    return float(reached / 2 ** len(rivals[0]))


@pytest.mark.parametrize("kind", ["normal", "skewed", "tied"])
def test_p_is_the_share_of_all_flips(kind: str) -> None:
    rng = np.random.default_rng(1)
    leads = rng.normal(0.4, 1, (3, 7)) if kind != "skewed" else rng.exponential(size=(3, 7)) - 0.5
    leads = np.round(leads * 2) if kind == "tied" else leads
    assert joint_p(flipped_statistics(leads)) == enumerated_p(leads.tolist())


def test_a_clear_lead_on_eight_datasets_has_one_flip_of_256() -> None:
    leads = np.array([[1.0, 2, 3, 4, 5, 6, 7, 8], [0.0, 0, 0, 0, 0, 0, 0, 0]])
    assert joint_p(flipped_statistics(leads)) == 1 / 256
    constant = np.full((1, 8), 0.1)
    assert joint_p(flipped_statistics(constant)) == 1 / 256
    assert joint_p(flipped_statistics(np.zeros((2, 8)))) == 1.0


def test_a_rival_twice_counts_once_and_missing_datasets_are_left_out() -> None:
    lead = np.random.default_rng(2).normal(0.8, 1, 8)
    once = joint_p(flipped_statistics(lead[None]))
    assert joint_p(flipped_statistics(np.stack([lead, lead, lead]))) == once
    holes = np.insert(lead, [2, 8], np.nan)
    assert joint_p(flipped_statistics(holes[None])) == once


def test_many_datasets_use_the_same_4096_flips_each_time() -> None:
    signs = flips(ALL_FLIPS_UP_TO + 4)
    assert signs.shape == (2**ALL_FLIPS_UP_TO, ALL_FLIPS_UP_TO + 4)
    assert set(np.unique(signs)) == {-1.0, 1.0}
    assert (signs[0] == 1).all()
    flips.cache_clear()
    np.testing.assert_array_equal(flips(ALL_FLIPS_UP_TO + 4), signs)
    assert len(np.unique(flips(9), axis=0)) == 2**9


def test_random_flips_agree_with_all_of_them() -> None:
    """Four datasets without a difference change no statistic of a lead on twelve datasets."""
    lead = np.random.default_rng(3).normal(0.5, 1, 12)
    exact, drawn = (joint_p(flipped_statistics(np.append(lead, [np.nan] * more)[None])) for more in (0, 4))
    assert drawn == pytest.approx(exact, abs=4 * math.sqrt(exact / 4096))


def test_the_set_follows_from_enumerated_p_step_by_step() -> None:
    """Five methods on eight datasets, by loops over all flips, one step after the other."""
    rng, excluded = np.random.default_rng(4), 0
    for _ in range(6):
        scores = rng.normal([[2.2], [1.4], [0.5], [-0.5], [-2.0]], 1.0, (5, JOINT_FROM))
        left = list(range(5))
        while True:
            p = [enumerated_p([list(scores[j] - scores[i]) for j in left if j != i]) for i in left]
            stay = [i for i, own in zip(left, p, strict=True) if own > LEVEL]
            if len(stay) in (0, len(left)) or len(stay) == 1:
                left = stay or left
                break
            left = stay
        table = {f"m{i}": {(f"d{d}", 0): float(scores[i, d]) for d in range(JOINT_FROM)} for i in range(5)}
        assert set(best_set(table).best_set) == {f"m{i}" for i in left}
        excluded += 5 - len(left)
    assert excluded > 8
