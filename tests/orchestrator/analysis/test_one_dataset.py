"""The best set on one dataset: variances by hand, scopes, words and degenerate input."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from orchestrator.analysis.one_dataset import balanced, best_set_on_dataset, one_sided_p, t_quantile, variance_parts

Table = dict[int, NDArray[np.bool_]]
IMAGES = 2000


def table(accuracy: float, seeds: range, *, by_seed: float = 0.0, key: int = 0) -> Table:
    """Correct predictions of a method; images are equally hard for all methods of the same ``IMAGES``."""
    ease_N = np.random.default_rng(99).uniform(size=IMAGES)
    rng = np.random.default_rng(key)
    return {seed: ease_N + rng.normal(0, 0.05, IMAGES) < accuracy + by_seed * rng.normal() for seed in seeds}


def test_mean_squares_by_hand() -> None:
    first = np.array([[1, 1, 0], [1, 0, 0]], dtype=bool)
    second = np.array([[0, 1, 0], [0, 1, 0]], dtype=bool)
    parts = variance_parts(first, second)
    # Differences: [[1, 0, 0], [1, -1, 0]]; row means 1/3 and 0, column means 1, -1/2 and 0, mean 1/6.
    assert parts.difference == pytest.approx(1 / 6)
    assert parts.seed_square == pytest.approx(3 * 2 * (1 / 6) ** 2)
    assert parts.image_square == pytest.approx(2 * ((5 / 6) ** 2 + (2 / 3) ** 2 + (1 / 6) ** 2) / 2)
    total = 3 - 6 / 36
    assert parts.rest_square == pytest.approx((total - parts.seed_square - 2 * parts.image_square) / 2)


def test_the_parts_estimate_the_variance_of_the_mean() -> None:
    """Over many draws of seeds and images, the mean estimate equals the true variance of the differences."""
    rng = np.random.default_rng(0)
    seeds, images, differences, estimates = 4, 50, [], []
    for _ in range(1500):
        chance_SN = 0.5 + 0.15 * rng.normal(size=(seeds, 1)) + 0.2 * rng.normal(size=images)
        parts = variance_parts(rng.uniform(size=(seeds, images)) < chance_SN, rng.uniform(size=(seeds, images)) < 0.5)
        differences.append(parts.difference)
        estimates.append((parts.seed_square + parts.image_square - parts.rest_square) / (seeds * images))
    assert np.mean(estimates) == pytest.approx(np.var(differences), rel=0.15)


def test_one_seed_is_the_paired_t_test_over_images() -> None:
    first, second = table(0.72, range(1))[0], table(0.70, range(1), key=1)[0]
    comparison = best_set_on_dataset({"a": {0: first}, "b": {0: second}})
    expected = stats.ttest_rel(first.astype(float), second.astype(float)).confidence_interval(0.95)
    other = comparison.methods[1]
    assert other.interval == pytest.approx((-100 * expected.high, -100 * expected.low))
    assert (comparison.scope, comparison.images, comparison.n) == ("draw", IMAGES, 1)
    assert comparison.statement() == "best on this dataset with these support images: a"


def test_the_quantile_lies_between_both_t_quantiles_and_its_p_inverts_it() -> None:
    share, seeds, images = np.array([0.0, 0.3, 1.0]), np.full(3, 3.0), np.full(3, 500.0)
    quantiles = t_quantile(0.99, share, seeds, images)
    assert quantiles[[0, 2]] == pytest.approx([stats.t.ppf(0.99, 499), stats.t.ppf(0.99, 2)])
    assert quantiles[0] < quantiles[1] < quantiles[2]
    assert one_sided_p(quantiles, share, seeds, images) == pytest.approx([0.01] * 3, rel=1e-4)
    assert one_sided_p(-quantiles, share, seeds, images) == pytest.approx([0.99] * 3, rel=1e-4)
    assert one_sided_p(np.full(3, math.nan), share, seeds, images).tolist() == [1.0] * 3


def test_several_seeds_speak_for_the_dataset_and_luck_with_seeds_widens_the_interval() -> None:
    def half_width(by_seed: float) -> float:
        methods = {"a": table(0.7, range(3), by_seed=by_seed), "b": table(0.7, range(3), by_seed=by_seed, key=1)}
        comparison = best_set_on_dataset(methods)
        assert comparison.scope == "dataset"
        interval = comparison.pairs[0].interval
        assert interval is not None
        return (interval[1] - interval[0]) / 2

    assert half_width(0.03) > 3 * half_width(0.0)


def test_a_clear_leader_wins_on_the_dataset_and_equal_methods_are_level() -> None:
    first, second = table(0.8, range(3)), table(0.7, range(3), key=1)
    comparison = best_set_on_dataset({"a": first, "b": second})
    assert comparison.statement() == "best on this dataset: a"
    assert comparison.methods[1].beaten_by == "a"
    assert comparison.methods[0].mean == pytest.approx(80, abs=2)
    assert best_set_on_dataset({"a": first, "b": dict(first)}).statement() == "level on this dataset: a, b"
    assert best_set_on_dataset({"a": first}).statement() == "one method only on this dataset: a"
    assert best_set_on_dataset({}).best_set == ()


def test_undecided_pairs_need_more_seeds_or_more_images() -> None:
    lucky = {"a": table(0.72, range(3), by_seed=0.02), "b": table(0.7, range(3), by_seed=0.02, key=1)}
    seeds = best_set_on_dataset(lucky)
    assert seeds.outcome == "undecided"
    assert seeds.more is not None
    assert f"about {seeds.more} more seed" in seeds.statement()
    # Of 60 images, 30 are right with both methods, 15 with a alone, 13 with b alone. Seeds change 2 % of them.
    place_N, rng = np.arange(60), np.random.default_rng(0)
    own_N = {"a": place_N < 45, "b": (place_N < 30) | ((place_N >= 45) & (place_N < 58))}
    few = {m: {seed: row ^ (rng.uniform(size=60) < 0.02) for seed in range(3)} for m, row in own_N.items()}
    images = best_set_on_dataset(few)
    assert images.more is None
    assert "test images are too few" in images.statement()


def test_methods_without_seeds_are_compared_with_every_seed() -> None:
    methods = {"zero": table(0.6, range(1)), "a": table(0.7, range(1, 4), key=1)}
    comparison = best_set_on_dataset(methods, without_seeds={"zero"})
    assert (comparison.scope, comparison.best_set) == ("dataset", ("a",))
    assert [(score.n, score.seeds) for score in comparison.methods] == [(3, 3), (1, 0)]
    both = {"a": table(0.6, range(1)), "b": table(0.7, range(1), key=1)}  # they differ by images alone
    assert best_set_on_dataset(both, without_seeds=both).statement() == "best on this dataset: b"


def test_the_best_mean_stands_first_although_its_method_has_no_seeds() -> None:
    methods = {
        "zero": table(0.62, range(1)),
        "a": table(0.6, range(1, 4), by_seed=0.05, key=1),
        "b": table(0.58, range(1, 4), by_seed=0.05, key=2),
    }
    comparison = best_set_on_dataset(methods, without_seeds={"zero"})
    assert comparison.best_set == ("zero", "a", "b")
    assert [score.mean for score in comparison.methods] == sorted((s.mean for s in comparison.methods), reverse=True)
    assert comparison.n == 3


def test_only_shared_seeds_count() -> None:
    methods = {"a": table(0.8, range(3)), "b": table(0.7, range(2, 5), key=1), "c": table(0.7, range(7, 9), key=2)}
    comparison = best_set_on_dataset(methods)
    assert comparison.scope == "draw", "no pair shares two seeds"
    assert [score.method for score in comparison.methods if not score.in_best_set] == ["b"]
    assert comparison.methods[1].difference is None, "a and c share no seed"
    wider = best_set_on_dataset({**methods, "d": table(0.79, range(3), key=3)})
    assert wider.scope == "dataset"
    assert "b" in wider.best_set, "one shared seed says nothing about others"


def test_images_must_be_the_same() -> None:
    with pytest.raises(ValueError, match=r"\(1, 5\), \(1, 6\)"):
        best_set_on_dataset({"a": {0: np.ones(5, dtype=bool)}, "b": {0: np.ones(6, dtype=bool)}})


def test_few_images_without_a_difference_are_not_level() -> None:
    """Two methods that are right on all of 20 images were called level: each may be wrong on one image of ten."""
    right = {images: np.ones(images, dtype=bool) for images in (20, 400)}
    for seeds, would_settle in ((range(1), "too few shared seeds"), (range(3), "the test images are too few")):
        few = best_set_on_dataset({m: dict.fromkeys(seeds, right[20]) for m in ("a", "b")})
        assert few.outcome == "undecided"
        assert would_settle in few.statement()
        assert few.pairs[0].interval == pytest.approx((-16.84, 16.84), abs=0.01)
        many = best_set_on_dataset({m: dict.fromkeys(seeds, right[400]) for m in ("a", "b")})
        assert many.outcome == "level"
    two = {"a": {0: right[20][:2], 1: right[20][:2]}, "b": {0: right[20][:2], 1: ~right[20][:2]}}
    assert best_set_on_dataset(two).pairs[0].interval == (-100, 100)  # was -585 to 685
    labels_N = np.repeat(np.arange(3, dtype=np.uint16), 2)  # b is wrong on both images of a class; a was the best
    values = {m: balanced({0: row}, labels_N) for m, row in (("a", right[20][:6]), ("b", labels_N < 2))}
    assert best_set_on_dataset(values).pairs[0].interval == pytest.approx((-12.6, 79.3), abs=0.1)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_balanced_accuracy_of_one_class_or_of_one_image_each_varies_as_accuracy_does(labels: list[int]) -> None:
    """Regression: with one class, the variance was larger by N / (N - 1)."""
    correct = {0: np.array([True, True, False, True]), 1: np.array([True, False, True, False])}
    own, none = balanced(correct, np.array(labels, dtype=np.uint16)), np.zeros((2, 4))
    found = variance_parts(np.stack([*own.values()]).astype(np.float64), none)
    plain = variance_parts(np.stack([*correct.values()]), none)
    assert (found.difference, found.variance) == pytest.approx((plain.difference, plain.variance))


@pytest.mark.parametrize(("sizes", "seeds"), [((225, 75), 3), ((1,) * 80, 1), ((2,) * 40, 1), ((1,) * 30 + (60,), 1)])
def test_balanced_accuracy_on_one_dataset_holds_the_truth(sizes: tuple[int, ...], seeds: int) -> None:
    """Two methods have equal recalls, and one class is more frequent and easier. The interval must contain 0."""
    rng, held, draws = np.random.default_rng(5), [], 150
    recall_N = np.repeat(np.linspace(0.9, 0.4, len(sizes)), sizes)
    labels_N = np.repeat(np.arange(len(sizes), dtype=np.uint16), sizes)
    for _ in range(draws):
        tables = {m: {s: rng.random(len(labels_N)) < recall_N for s in range(seeds)} for m in ("a", "b")}
        values = {m: balanced(own, labels_N) for m, own in tables.items()}
        for method, own in tables.items():
            for seed, row_N in own.items():
                expected = (np.bincount(labels_N, weights=row_N) / sizes).mean()
                assert values[method][seed].mean() == pytest.approx(expected)
        intervals = [pair.interval for pair in best_set_on_dataset(values).pairs]
        held.append(any(interval is not None and interval[0] <= 0 <= interval[1] for interval in intervals))
    assert np.mean(held) >= 0.95 - 3 * math.sqrt(0.05 * 0.95 / draws)
