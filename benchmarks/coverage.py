"""How often the best set holds the truly best method, and how often it finds it, with made-up scores.

    python benchmarks/coverage.py --draws 4000            # an hour; the numbers in docs/verdict.md
    python benchmarks/coverage.py --rows reports/demo/rows.csv

Over datasets: M methods on N datasets, under Student's t-tests in one step at 0.05 / (M - 1) and under the rule of
``orchestrator.analysis.best_set``. "covers": method 0, which no other one beats in truth, is in the best set. "alone":
it is the only one there. Scores have a deviation of sqrt(2) points, so that the difference of two methods has a
deviation of 2. With ``--rows``, datasets are drawn from a report's rows, with the means of all methods made equal.

"Loss": the last of six methods is the cheapest; how often it is recommended and more than 1 point worse than the best,
the mean loss in points, and how often the recommendation's bound holds.

"Metrics": how often the interval of each metric of one test split holds the value of very many images.

On one dataset: two methods that are equal in truth, seeds x images, under the 95 % interval of
``orchestrator.analysis.one_dataset`` and under the usual one with Satterthwaite's degrees of freedom. The numbers say
how often an interval holds 0.

Shape legend: R draws, M methods, N datasets (or images), S seeds.
"""

import argparse
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from orchestrator.analysis.best_set import best_set, exclusion_test
from orchestrator.analysis.comparison import by_pair, eliminate
from orchestrator.analysis.costs import Cost
from orchestrator.analysis.metric_intervals import intervals, jackknife_interval, jackknife_parts
from orchestrator.analysis.metrics import METRICS, Answers
from orchestrator.analysis.one_dataset import t_quantile, variance_parts
from orchestrator.analysis.paired_tests import Floats, PairedTests, paired_t_tests
from orchestrator.analysis.recommendation import Verdict
from orchestrator.tracks import MetricName

Procedure = Callable[[int, Floats, PairedTests], NDArray[np.bool_]]
"""``methods, differences of all pairs, their t-tests -> the best set``."""
Scenario = Callable[[np.random.Generator, tuple[int, int, int]], Floats]
DEVIATION = math.sqrt(2)
METHODS = 6


def _normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * rng.normal(size=shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * (rng.exponential(size=shape) - 1)


def _scatters(method: int) -> Scenario:
    return lambda rng, shape: _normal(rng, shape) * np.where(np.arange(shape[1]) == method % shape[1], 5, 1)[:, None]


EQUAL: Mapping[str, Scenario] = {
    "normal": _normal,
    "rounded to whole points, so that many tie": lambda rng, shape: np.round(_normal(rng, shape)),
    "skewed (exponential)": _skewed,
    "heavy tails (t, 3 degrees of freedom)": lambda rng, shape: DEVIATION / math.sqrt(3) * rng.standard_t(3, shape),
    "one method scatters 5 times more": _scatters(-1),
    "the best method scatters 5 times more": _scatters(0),
    "spreads from 0.2 to 5 times": lambda rng, shape: _normal(rng, shape) * np.geomspace(0.2, 5, shape[1])[:, None],
    "some datasets scatter more than others": lambda rng, shape: (
        _normal(rng, shape) * np.exp(rng.normal(size=(shape[0], 1, shape[2])))
    ),
}
"""Scenarios in which all methods are equal in truth."""


def _ahead(lead: float, others: int = 1, fails: float = 0.0) -> Scenario:
    """Let the first methods lead; the others lose 20 points more on this share of datasets."""

    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        scores_RMN = _normal(rng, shape)
        scores_RMN[:, :others] += lead
        scores_RMN[:, others:] -= 20 * (rng.random(scores_RMN[:, others:].shape) < fails)
        return scores_RMN

    return scores


LEADS: Mapping[str, Scenario] = {
    "two level on top, 3 points ahead": _ahead(3.0, others=2),
    "a lead of 3 points": _ahead(3.0),
    "a lead of 5 points": _ahead(5.0),
    "a lead of 3; the others lose 20 points more on 10 % of datasets": _ahead(3.0, fails=0.1),
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


def resampled(rows: Path) -> Scenario:
    """Datasets drawn from the few-shot rows of a report at the largest k, and methods in random order."""
    table = pd.read_csv(rows).query("track == 'fewshot'")
    table = table[table.k.isin([0, table.k.max()])]
    known = table.pivot_table(index="method", columns=["domain", "dataset"], values="accuracy").dropna()
    centred = known.sub(known.mean(axis=1), axis=0).to_numpy()

    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        drawn = rng.integers(centred.shape[1], size=(shape[0], 1, shape[2]))
        methods = rng.permuted(np.tile(np.arange(len(centred)), (shape[0], 1)), axis=1)[:, : shape[1], None]
        return np.asarray(centred[methods, drawn])

    return scores


def one_step(methods: int, _: Floats, tests: PairedTests) -> NDArray[np.bool_]:
    """Student's t-tests of all pairs, once."""
    beats_MM = by_pair(methods, tests.p_first, tests.p_second, 1.0) <= 0.05 / (methods - 1)
    return np.asarray(~beats_MM.any(axis=0))


def rule(methods: int, differences_PN: Floats, tests: PairedTests) -> NDArray[np.bool_]:
    """Apply the rule of the engine."""
    return eliminate(methods, exclusion_test(methods, differences_PN, tests))[0] < 0


def best_sets(scores_RMN: Floats, procedure: Procedure = rule) -> NDArray[np.bool_]:
    """Mark the methods in the best set of each draw (R x M)."""
    methods = scores_RMN.shape[1]
    first, second = np.triu_indices(methods, 1)
    differences_RPN = scores_RMN[:, first] - scores_RMN[:, second]
    return np.array([procedure(methods, own_PN, paired_t_tests(own_PN)) for own_PN in differences_RPN])


def covers(sets_RM: NDArray[np.bool_]) -> float:
    """Return how often method 0 is in the best set."""
    return float(sets_RM[:, 0].mean())


def alone(sets_RM: NDArray[np.bool_]) -> float:
    """Return how often method 0 is the whole best set."""
    return float((sets_RM[:, 0] & (sets_RM.sum(axis=1) == 1)).mean())


def losses(rng: np.random.Generator, draws: int, means: list[float], datasets: int) -> tuple[float, float, float]:
    """Return how often the recommended method is over 1 point worse than the best, its mean loss, and the bound's hold.

    Differences deviate by 4 points. The last method is the cheapest.
    """
    costs = {f"m{i}": Cost(operations=2.0**-i) for i in range(len(means))}
    found = []
    for _ in range(draws):
        scores_MN = np.array(means)[:, None] + 2 * DEVIATION * rng.normal(size=(len(means), datasets))
        table = {f"m{i}": {(f"d{d}", 0): float(x) for d, x in enumerate(own)} for i, own in enumerate(scores_MN)}
        verdict = Verdict(1, best_set(table), costs)
        loss = max(means) - means[int(str(verdict.recommended)[1:])]
        found.append((loss > 1, loss, loss <= (verdict.loss or 0.0)))
    over, mean, held = np.mean(found, axis=0)
    return float(over), float(mean), float(held)


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


def drawn_answers(rng: np.random.Generator, images: int, overconfidence: float = 0.0) -> Answers:
    """Draw predictions among six classes; rare classes are harder, and probabilities may be too high."""
    labels = rng.choice(6, images, p=(share := np.arange(1, 7)) / share.sum())
    probability = rng.integers(100, 256, images) / 255
    easier = np.linspace(-0.25, 0.05, 6)[labels] - overconfidence
    right = rng.random(images) < np.clip(probability + easier, 0, 1)
    return Answers(labels, np.where(right, labels, (labels + rng.integers(1, 6, images)) % 6), probability)


def metric_coverage(
    rng: np.random.Generator, draws: int, images: int, overconfidence: float = 0.0
) -> dict[MetricName, float]:
    """Return how often the 95 % interval of each metric holds the value of 400,000 images.

    Metrics without an interval get the jackknife's, which shows why they have none.
    """
    whole = drawn_answers(np.random.default_rng(0), 400_000, overconfidence)
    truth = {name: metric.of(whole) for name, metric in METRICS.items()}
    held = dict.fromkeys(METRICS, 0)
    for _ in range(draws):
        answers = drawn_answers(rng, images, overconfidence)
        for name, interval in intervals(answers).items():
            low, high = interval or jackknife_interval(METRICS[name], answers, jackknife_parts(answers))
            held[name] += low <= truth[name] <= high
    return {name: count / draws for name, count in held.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--methods", type=int, default=METHODS)
    parser.add_argument("--rows", type=Path, help="rows.csv of a report: its scenario alone")
    options = parser.parse_args()
    rng, sizes = np.random.default_rng(0), (5, 8, 10, 16, 32)
    print(f"{options.methods} methods, {options.draws} draws; t / rule")
    tables = [("covers", EQUAL, covers), ("alone", LEADS, alone), ("covers, beyond the promise", BEYOND, covers)]
    if options.rows:
        tables = [("covers", {"resampled rows": resampled(options.rows)}, covers)]
    for title, scenarios, count in tables:
        print(f"\n| {title} | {' | '.join(f'n = {n}' for n in sizes)} |\n|{'---|' * (len(sizes) + 1)}")
        for name, scenario in scenarios.items():
            columns = []
            for datasets in sizes:
                scores = scenario(rng, (options.draws, options.methods, datasets))
                shares = (count(best_sets(scores, procedure)) for procedure in (one_step, rule))
                columns.append(" / ".join(f"{share:.3f}" for share in shares))
            print(f"| {name} | {' | '.join(columns)} |", flush=True)
    if options.rows:
        return
    print(f"\n| loss: over 1 point / mean / bound holds | n = 5 | n = 8 | n = 16 |\n{'|---' * 4}|")
    for means in ([2.0, 0.0], [2.0] * 5 + [0.0], [2.5, 2.0, 1.5, 1.0, 0.5, 0.0], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]):
        own_losses = (losses(rng, options.draws, means, datasets) for datasets in (5, 8, 16))
        print(f"| {means} | {' | '.join('{:.3f} / {:.2f} / {:.3f}'.format(*own) for own in own_losses)} |", flush=True)
    print(f"\n| one dataset: deviation of seeds, of images; ours / usual | S = 2 | S = 3 | S = 5 |\n{'|---' * 4}|")
    for images in (200, 2000):
        for deviations in ((0.0, 0.5), (0.1, 0.5), (0.2, 0.5), (0.5, 0.5), (0.2, 0.0)):
            pairs = [crossed_coverage(rng, options.draws, seeds, images, *deviations) for seeds in (2, 3, 5)]
            text = " | ".join(f"{ours:.3f} / {usual:.3f}" for ours, usual in pairs)
            print(f"| N = {images}: {deviations[0]}, {deviations[1]} | {text} |", flush=True)
    print(f"\n| metrics of one test split, interval holds | {' | '.join(METRICS)} |\n{'|---' * (1 + len(METRICS))}|")
    for images in (200, 1000):
        for overconfidence in (0.0, 0.15):
            found = metric_coverage(rng, options.draws, images, overconfidence)
            text = " | ".join(f"{share:.3f}" for share in found.values())
            print(f"| N = {images}, probabilities {100 * overconfidence:g} points too high | {text} |", flush=True)


if __name__ == "__main__":
    main()
