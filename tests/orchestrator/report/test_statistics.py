"""The report's statistics, each formula against SciPy, against brute force, or by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bolt.seeds import numpy_generator
from orchestrator.analysis.seed_means import seed_means, summarize
from orchestrator.report.analysis.critical_difference import (
    CriticalDifference,
    cliques,
    critical_difference,
    critical_distance,
    davenport,
    friedman,
)
from orchestrator.report.analysis.statistics import (
    EXACT_UP_TO,
    Scores,
    average_ranks,
    compare,
    holm,
    wilcoxon,
    wins_ties_losses,
)
from orchestrator.report.analysis.verdict import verdicts_of
from orchestrator.report.figures.critical_difference import critical_difference_figure
from tests.helpers.small_results import DATASETS, cell, grid, result, study


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


def test_average_ranks_share_ties() -> None:
    ranks = average_ranks({"x": [90.0, 70.0], "y": [90.0, 80.0], "z": [10.0, 60.0]})
    assert ranks == {"x": pytest.approx((1.5 + 2) / 2), "y": pytest.approx((1.5 + 1) / 2), "z": 3.0}
    assert average_ranks({}) == {}


def test_rounding_noise_is_a_tie() -> None:
    assert wins_ties_losses([0.1 + 0.2, 2.0, 1.0], [0.3, 1.0, 3.0]) == (1, 1, 1)
    assert average_ranks({"x": [0.1 + 0.2], "y": [0.3]}) == {"x": 1.5, "y": 1.5}


@pytest.mark.parametrize("n", [6, 8, 17, 32])
def test_wilcoxon_without_ties_is_scipys_exact_test(n: int) -> None:
    rng = np.random.default_rng(n)
    first, second = rng.normal(0.4, 1, n), rng.normal(0, 1, n)
    assert wilcoxon(list(first), list(second)) == pytest.approx(stats.wilcoxon(first - second, method="exact").pvalue)


def test_wilcoxon_with_ties_is_the_permutation_test() -> None:
    differences = np.array([1.0, 1.0, -1.0, 2.0, 2.0, 3.0, -3.0, 4.0])
    ranks = stats.rankdata(np.abs(differences))
    observed = ranks[differences > 0].sum()
    signs = np.array(np.meshgrid(*[[0, 1]] * 8)).reshape(8, -1)
    sums = ranks @ signs
    by_hand = min(1.0, 2 * min((sums <= observed).mean(), (sums >= observed).mean()))
    assert wilcoxon(list(differences), [0.0] * 8) == pytest.approx(by_hand)


def test_wilcoxon_at_its_ends() -> None:
    assert wilcoxon([1.0] * 7, [1.0] * 7) == 1.0
    assert wilcoxon([2.0, 3.0, 4.0, 5.0, 6.0, 7.0], [1.0] * 6) == pytest.approx(2 / 2**6)
    rng = np.random.default_rng(0)
    many = rng.normal(0.2, 1, 60)
    assert wilcoxon(list(many), [0.0] * 60) == pytest.approx(stats.wilcoxon(np.round(many, 9)).pvalue)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, 0.06 and 0.04, which may not fall below 0.06.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_pairs_are_corrected_over_all_pairs_and_seen_from_either_side() -> None:
    scores = {
        name: Scores({d: {0: base + i, 1: base + 1.5 * i} for i, d in enumerate(DATASETS)})
        for name, base in (("a", 60.0), ("b", 50.0), ("c", 40.0))
    }
    pairs = compare(scores)
    assert [(p.first, p.second) for p in pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(p.p == pytest.approx(2 / 2**8) and p.p_holm == pytest.approx(3 * 2 / 2**8) for p in pairs)
    assert all(p.significant and p.seeds == 2 and (p.wins, p.ties, p.losses) == (8, 0, 0) for p in pairs)
    turned = pairs[0].reversed()
    assert (turned.first, turned.losses, turned.difference) == ("b", 8, pytest.approx(-10.0))


def test_nothing_is_tested_from_one_seed_or_few_datasets() -> None:
    one_seed = {m: Scores({d: {0: base} for d in DATASETS}) for m, base in (("a", 60.0), ("b", 50.0))}
    few = {m: Scores({d: {0: base, 1: base} for d in DATASETS[:5]}) for m, base in (("a", 60.0), ("b", 50.0))}
    for scores, reason in ((one_seed, "one seed"), (few, "5 datasets")):
        (pair,) = compare(scores)
        assert pair.p is None
        assert pair.p_holm is None
        assert not pair.significant
        assert reason in pair.reason_untested


def test_a_fixed_method_needs_no_second_seed_but_its_rival_does() -> None:
    fixed = Scores({d: {0: 50.0} for d in DATASETS}, fixed=True)
    twice = Scores({d: {3: 60.0, 4: 61.0} for d in DATASETS})
    once = Scores({d: {3: 60.0} for d in DATASETS})
    assert compare({"fixed": fixed, "twice": twice})[0].significant
    assert compare({"fixed": fixed, "once": once})[0].p is None
    # Neither draws anything: there is no seed to repeat, and datasets are what they are tested over.
    other = Scores({d: {0: 51.0 + i} for i, d in enumerate(DATASETS)}, fixed=True)
    (pair,) = compare({"fixed": fixed, "other": other})
    assert pair.significant
    assert pair.seeds == 0
    few = {name: Scores({d: {0: base} for d in DATASETS[:5]}, fixed=True) for name, base in (("a", 1.0), ("b", 2.0))}
    assert compare(few)[0].reason_untested == "5 datasets; a test needs 6"


def test_pairs_use_the_seeds_both_have() -> None:
    a = Scores({d: {0: 60.0, 1: 0.0} for d in DATASETS})
    b = Scores({d: {0: 50.0, 2: 99.0} for d in DATASETS})
    (pair,) = compare({"a": a, "b": b})
    assert (pair.difference, pair.seeds, pair.wins) == (pytest.approx(10.0), 1, 8)


def test_ranks_are_scipys_averaged_over_datasets() -> None:
    scores_MN = numpy_generator("ranks").integers(50, 60, (5, 40)).astype(float)
    ranks = average_ranks({str(i): list(own) for i, own in enumerate(scores_MN)})
    by_hand = [[1 + sum(b > a for b in column) + (sum(b == a for b in column) - 1) / 2 for a in column]
               for column in scores_MN.T]  # fmt: skip
    assert list(ranks.values()) == pytest.approx(np.mean(by_hand, axis=0))
    assert sum(ranks.values()) == pytest.approx(5 * 6 / 2)


@pytest.mark.parametrize("seed", range(6))
def test_wilcoxon_is_every_assignment_of_signs_ties_and_equal_pairs_included(seed: int) -> None:
    draw = numpy_generator("wilcoxon", seed)
    differences = draw.integers(-4, 6, 10).astype(float)
    kept = differences[differences != 0]
    ranks = stats.rankdata(np.abs(kept))
    sums = [sum(r for r, sign in zip(ranks, signs, strict=True) if sign)
            for signs in itertools.product((0, 1), repeat=len(kept))]  # fmt: skip
    observed = ranks[kept > 0].sum()
    tails = np.mean(np.array(sums) <= observed), np.mean(np.array(sums) >= observed)
    assert wilcoxon(list(differences), [0.0] * 10) == pytest.approx(min(1.0, 2 * min(tails)))


def test_equal_pairs_are_dropped_as_scipy_drops_them_by_default() -> None:
    differences = np.array([3.0, -1.0, 4.0, 2.0, 6.0, 5.0, -7.0, 8.0])
    alone = wilcoxon(list(differences), [0.0] * 8)
    assert wilcoxon([*differences, 0.0, 0.0], [0.0] * 10) == alone
    assert alone == pytest.approx(stats.wilcoxon(differences, zero_method="wilcox", method="exact").pvalue)


def test_many_differences_take_the_normal_approximation_with_ties() -> None:
    n = EXACT_UP_TO + 14
    differences = numpy_generator("many").integers(-5, 8, n).astype(float)
    kept = differences[differences != 0]
    ranks = stats.rankdata(np.abs(kept))
    _, counts = np.unique(np.abs(kept), return_counts=True)
    m = len(kept)
    variance = m * (m + 1) * (2 * m + 1) / 24 - sum(counts**3 - counts) / 48
    z = (min(ranks[kept > 0].sum(), ranks[kept < 0].sum()) - m * (m + 1) / 4) / math.sqrt(variance)
    assert m > EXACT_UP_TO
    assert wilcoxon(list(differences), [0.0] * n) == pytest.approx(2 * stats.norm.cdf(z))


# --- critical differences -----------------------------------------------------------------------------------------


def test_critical_distances_are_those_of_demsars_table() -> None:
    # JMLR 7 (2006), table 5a: q at 0.05 for 2 to 10 methods; and his example of 4 methods on 14 datasets.
    printed = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}
    for methods, q in printed.items():
        assert critical_distance(methods, 20) == pytest.approx(q * math.sqrt(methods * (methods + 1) / 120), abs=1e-3)
    assert critical_distance(4, 14) == pytest.approx(1.25, abs=0.005)
    assert critical_distance(4, 14, alpha=0.10) == pytest.approx(1.12, abs=0.005)


def test_davenports_f_is_that_of_demsars_example() -> None:
    assert davenport(9.28, 4, 14) == pytest.approx(3.69, abs=0.005)
    assert davenport(14 * 3, 4, 14) == math.inf


def test_friedman_by_hand_without_ties() -> None:
    scores_MN = numpy_generator("friedman").normal(size=(4, 9))
    scores_MN[0] += 0.8
    ranks = np.array([stats.rankdata(-column) for column in scores_MN.T]).mean(axis=0)
    chi2 = 12 * 9 / (4 * 5) * (sum(ranks**2) - 4 * 5**2 / 4)
    assert chi2 == pytest.approx(stats.friedmanchisquare(*scores_MN).statistic)
    f = 8 * chi2 / (9 * 3 - chi2)
    assert friedman({str(i): list(own) for i, own in enumerate(scores_MN)}) == pytest.approx(stats.f.sf(f, 3, 24))


def test_friedman_at_its_ends_and_with_ties() -> None:
    assert friedman({name: [1.0, 2.0, 3.0] for name in "abc"}) == 1.0
    assert friedman({"a": [3.0] * 7, "b": [2.0] * 7, "c": [1.0] * 7}) == 0.0
    tied = {
        "a": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "b": [1.0, 2.0, 2.0, 4.0, 4.0, 5.0],
        "c": [0.5, 2.0, 1.0, 1.0, 2.0, 3.0],
    }
    chi2 = stats.friedmanchisquare(*tied.values()).statistic
    assert friedman(tied) == pytest.approx(stats.f.sf(5 * chi2 / (12 - chi2), 2, 10))


def test_cliques_are_the_longest_runs_and_none_lies_in_another() -> None:
    ranks = {"d": 4.0, "a": 1.0, "b": 1.9, "c": 2.6, "e": 6.0}
    assert cliques(ranks, 1.0) == (("a", "b"), ("b", "c"))
    assert cliques(ranks, 2.0) == (("a", "b", "c"), ("c", "d"))
    assert cliques(ranks, 1.4) == (("a", "b"), ("b", "c"))  # exactly as far apart as the distance is apart
    assert cliques(ranks, 0.5) == ()
    assert cliques(ranks, 9.0) == (("a", "b", "c", "d", "e"),)


def test_a_diagram_says_what_it_compares_and_leaves_nobody_out() -> None:
    made = study(grid({"zero_shot": 50.0, "bolt": 70.0, "linear_probe": 60.0}))
    (panel,) = made.panels
    found = critical_difference(panel, 4)
    assert isinstance(found, CriticalDifference)
    assert found.ranks == {"BOLT": 1.0, "Linear probe": 2.0, "Zero-shot": 3.0}
    assert (found.datasets, found.seeds, found.p) == (8, 2, 0.0)
    assert found.distance == pytest.approx(2.3437 * math.sqrt(12 / 48), abs=1e-3)
    assert found.cliques == (("BOLT", "Linear probe"), ("Linear probe", "Zero-shot"))
    figure = critical_difference_figure(made, panel, 4)
    assert figure is not None
    assert figure == critical_difference_figure(made, panel, 4)
    for words in ("8 datasets", "means over 2 seeds", "p < 0.0001", "alpha = 0.05", "CD = 1.17", "Nemenyi"):
        assert words in figure.caption
    assert all(name in figure.svg for name in found.ranks)


def test_methods_that_do_not_differ_share_one_bar() -> None:
    results = grid(dict.fromkeys(("bolt", "linear_probe", "lora"), 60.0))
    (panel,) = study(results).panels
    found = critical_difference(panel, 4)
    assert isinstance(found, CriticalDifference)
    assert (found.p, found.differ, len(found.cliques), len(found.cliques[0])) == (1.0, False, 1, 3)


@pytest.mark.parametrize(
    ("accuracies", "changes", "reason"),
    [
        ({"bolt": 70.0, "lora": 60.0}, {}, "3 methods or more, and 2"),
        ({"bolt": 70.0, "lora": 60.0, "atlas": 50.0}, {"seeds": (1,)}, "one seed"),
        ({"bolt": 70.0, "lora": 60.0, "atlas": 50.0}, {"datasets": DATASETS[:5]}, "5 of the 6 datasets"),
    ],
)
def test_too_little_gives_a_sentence_and_no_diagram(
    accuracies: dict[str, float], changes: dict[str, tuple[int, ...]], reason: str
) -> None:
    made = study(grid(accuracies, **changes))  # type: ignore[arg-type]
    (panel,) = made.panels
    found = critical_difference(panel, 4)
    assert isinstance(found, str)
    assert reason in found
    assert critical_difference_figure(made, panel, 4) is None


def test_two_classifiers_that_draw_nothing_are_tested_over_datasets_and_no_seed_is_spoken_of() -> None:
    results = [
        result(cell("zero_shot", dataset, settings=(("prompts", name),)), accuracy + i)
        for name, accuracy in (("one", 50.0), ("many", 55.0))
        for i, dataset in enumerate(DATASETS)
    ]
    (panel,) = study(results).panels
    assert panel.seeded == frozenset()
    (pair,) = panel.pairs(panel.ks[0])
    assert (pair.p, pair.seeds, pair.reason_untested) == (pytest.approx(2 / 2**8), 0, "")
    (verdict,) = verdicts_of(panel)
    assert verdict.support == "supported"
    assert "over 8 datasets: p = 0.0078" in verdict.reason
    assert "seed" not in verdict.reason
