"""How often the best set holds the truly best method, and how often it finds it, with made-up scores.

    python benchmarks/coverage.py --draws 4000     # an hour; the numbers in docs/verdict.md

Over datasets: M methods on N datasets, under Student's t-tests, and under the rule of
``orchestrator.analysis.best_set``, which tests jointly from 8 datasets on. "covers": method 0, which no other one beats
in truth, is in the best set. "alone": it is the only one there. Scores have a deviation of sqrt(2) points, so that the
difference of two methods has a deviation of 2.

On one dataset: two methods that are equal in truth, seeds x images, under the 95 % interval of
``orchestrator.analysis.one_dataset`` and under the usual one with Satterthwaite's degrees of freedom. The numbers say
how often an interval holds 0.

Shape legend: R draws, M methods, N datasets (or images), S seeds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from orchestrator.analysis.best_set import exclusion_test
from orchestrator.analysis.comparison import Test, by_pair, eliminate, pairwise_test
from orchestrator.analysis.one_dataset import t_quantile, variance_parts
from orchestrator.analysis.paired_tests import Floats, PairedTests, paired_t_tests

Procedure = Callable[[int, Floats, PairedTests], Test]
Scenario = Callable[[np.random.Generator, tuple[int, int, int]], Floats]
DEVIATION = math.sqrt(2)
METHODS = 6


def _normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * rng.normal(size=shape)


def _tied(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return np.round(_normal(rng, shape))


def _skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * (rng.exponential(size=shape) - 1)


def _heavy(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return np.asarray(DEVIATION / math.sqrt(3) * rng.standard_t(3, size=shape))


def _scatters(method: int) -> Scenario:
    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        scores_RMN = _normal(rng, shape)
        scores_RMN[:, method] *= 5
        return scores_RMN

    return scores


def _spreads(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return _normal(rng, shape) * np.geomspace(0.2, 5, shape[1])[:, None]


def _hard_datasets(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return _normal(rng, shape) * np.exp(rng.normal(size=(shape[0], 1, shape[2])))


EQUAL: Mapping[str, Scenario] = {
    "normal": _normal,
    "rounded to whole points, so that many tie": _tied,
    "skewed (exponential)": _skewed,
    "heavy tails (t, 3 degrees of freedom)": _heavy,
    "one method scatters 5 times more": _scatters(-1),
    "the best method scatters 5 times more": _scatters(0),
    "spreads from 0.2 to 5 times": _spreads,
    "some datasets scatter more than others": _hard_datasets,
}
"""Scenarios in which all methods are equal in truth."""


def _ahead(lead: float, others: int = 1) -> Scenario:
    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        scores_RMN = _normal(rng, shape)
        scores_RMN[:, :others] += lead
        return scores_RMN

    return scores


def _rivals_fail(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    scores_RMN = _normal(rng, shape)
    scores_RMN[:, 0] += 3
    scores_RMN[:, 1:] -= 20 * (rng.random((shape[0], shape[1] - 1, shape[2])) < 0.1)
    return scores_RMN


LEADS: Mapping[str, Scenario] = {
    "two level on top, 3 points ahead": _ahead(3.0, others=2),
    "a lead of 3 points": _ahead(3.0),
    "a lead of 5 points": _ahead(5.0),
    "a lead of 3; the others lose 20 points more on 10 % of datasets": _rivals_fail,
}
"""Scenarios in which method 0 leads."""


def _rival_collapses(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    scores_RMN = 0.2 * _normal(rng, shape)
    scores_RMN[:, -1] += 1.5 - 10 * (rng.random((shape[0], shape[2])) < 0.15)
    return scores_RMN


def _rivals_skewed_down(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    scores_RMN = -_skewed(rng, shape)
    scores_RMN[:, 0] = 0.2 * _normal(rng, shape)[:, 0]
    return scores_RMN


BEYOND: Mapping[str, Scenario] = {
    "only the best method is free of skew": _rivals_skewed_down,
    "one rival is 1.5 points better, but 8.5 worse on 15 % of datasets": _rival_collapses,
}
"""Scenarios that break the promise: what decides who is best is rarely among the datasets that were measured."""


def pairwise(methods: int, _: Floats, tests: PairedTests) -> Test:
    """Student's t-tests at every N."""
    return pairwise_test(by_pair(methods, tests.p_first, tests.p_second, 1.0), ~np.eye(methods, dtype=bool))


PROCEDURES: Mapping[str, Procedure] = {"t": pairwise, "rule": exclusion_test}


def best_sets(scores_RMN: Floats, procedure: Procedure = exclusion_test) -> NDArray[np.bool_]:
    """Mark the methods in the best set of each draw (R x M)."""
    methods = scores_RMN.shape[1]
    first, second = np.triu_indices(methods, 1)
    sets = []
    for scores_MN in scores_RMN:
        differences_PN = scores_MN[first] - scores_MN[second]
        sets.append(eliminate(methods, procedure(methods, differences_PN, paired_t_tests(differences_PN))) < 0)
    return np.array(sets)


def covers(sets_RM: NDArray[np.bool_]) -> float:
    """Return how often method 0 is in the best set."""
    return float(sets_RM[:, 0].mean())


def alone(sets_RM: NDArray[np.bool_]) -> float:
    """Return how often method 0 is the whole best set."""
    return float((sets_RM[:, 0] & (sets_RM.sum(axis=1) == 1)).mean())


def crossed_tables(
    rng: np.random.Generator, seeds: int, images: int, seed_deviation: float, image_deviation: float
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draw correct predictions of two methods that are equal in truth, seeds x images.

    A prediction is correct if a latent value is positive: the image's ease, which both methods share, plus the method's
    own ease with the image, plus its luck with the seed, plus noise.
    """
    ease_N = 0.5 + 1.5 * rng.normal(size=images)
    tables = []
    for _ in range(2):
        own_N, luck_S1 = image_deviation * rng.normal(size=images), seed_deviation * rng.normal(size=(seeds, 1))
        tables.append(ease_N + own_N + luck_S1 + 0.7 * rng.normal(size=(seeds, images)) > 0)
    return tables[0], tables[1]


def crossed_coverage(
    rng: np.random.Generator, draws: int, seeds: int, images: int, seed_deviation: float, image_deviation: float
) -> tuple[float, float]:
    """Return how often the 95 % intervals hold 0: Cochran and Cox's, and Satterthwaite's."""
    held = np.zeros((draws, 2), dtype=bool)
    for draw in range(draws):
        parts = variance_parts(*crossed_tables(rng, seeds, images, seed_deviation, image_deviation))
        share, error = np.array([parts.seed_share]), math.sqrt(parts.variance)
        weighted = float(t_quantile(0.975, share, np.array([float(seeds)]), images)[0])
        freedom = (seeds - 1) / parts.seed_share**2 if parts.seed_share else seeds * images
        held[draw] = [abs(parts.difference) <= q * error for q in (weighted, float(stdtrit(freedom, 0.975)))]
    ours, usual = held.mean(axis=0)
    return float(ours), float(usual)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--methods", type=int, default=METHODS)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    print(f"{options.methods} methods, {options.draws} draws; t / rule")
    for title, scenarios, count in (
        ("covers", EQUAL, covers),
        ("alone", LEADS, alone),
        ("covers, beyond the promise", BEYOND, covers),
    ):
        print(f"\n| {title} | n = 5 | n = 8 | n = 10 | n = 16 | n = 32 |\n|---|---|---|---|---|---|")
        for name, scenario in scenarios.items():
            columns = []
            for datasets in (5, 8, 10, 16, 32):
                scores = scenario(rng, (options.draws, options.methods, datasets))
                columns.append(
                    " / ".join(f"{count(best_sets(scores, procedure)):.3f}" for procedure in PROCEDURES.values())
                )
            print(f"| {name} | {' | '.join(columns)} |", flush=True)
    print("\n| one dataset: deviation of seeds, of images; ours / usual | S = 2 | S = 3 | S = 5 |\n|---|---|---|---|")
    for images in (200, 2000):
        for deviations in ((0.0, 0.5), (0.1, 0.5), (0.2, 0.5), (0.5, 0.5), (0.2, 0.0)):
            pairs = [crossed_coverage(rng, options.draws, seeds, images, *deviations) for seeds in (2, 3, 5)]
            text = " | ".join(f"{ours:.3f} / {usual:.3f}" for ours, usual in pairs)
            print(f"| N = {images}: {deviations[0]}, {deviations[1]} | {text} |", flush=True)


if __name__ == "__main__":
    main()
