"""How often statements about methods hold, which promise 95 %, with made-up scores whose truth is known.

    python benchmarks/coverage.py --draws 4000            # an hour; the numbers in docs/verdict.md
    python benchmarks/coverage.py --rows reports/demo/rows.csv

Over datasets, Student's t-tests in one step at 0.05 / (M - 1) are compared with the rule of
``orchestrator.analysis.best_set``. No method truly beats method 0. "covers" says how often method 0 is in the best set,
"alone" how often it is the whole best set. The difference of two methods has a deviation of 2 points. With ``--rows``,
datasets are drawn from a report's rows, and the means of all methods are made equal.

"Loss": how often the recommended method is more than 1 point worse than the best, its mean loss in points, and how
often the recommendation's bound on the loss holds.

"One dataset": how often 95 % intervals of the difference of two methods contain the truth: the interval of
``orchestrator.analysis.one_dataset``, and the usual one with Satterthwaite's degrees of freedom.

"Metrics": how often the interval of each metric of one test split contains the metric's value on very many images.

Shape legend: R draws, M methods, N datasets (or images), S seeds.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from benchmarks.common import command, print_head, print_row
from orchestrator.analysis.best_set import best_set, exclusion_test
from orchestrator.analysis.comparison import by_pair, eliminate
from orchestrator.analysis.costs import Cost
from orchestrator.analysis.metric_intervals import intervals, jackknife_interval, jackknife_parts
from orchestrator.analysis.metrics import METRICS, Answers
from orchestrator.analysis.one_dataset import t_quantile, variance_parts
from orchestrator.analysis.paired_tests import Floats, PairedTests, paired_t_tests
from orchestrator.tracks import MetricName

Procedure = Callable[[int, Floats, PairedTests], NDArray[np.bool_]]
"""``methods, differences of all pairs, their t-tests -> the best set``."""
Scenario = Callable[[np.random.Generator, tuple[int, int, int]], Floats]
DEVIATION = math.sqrt(2)


def _normal(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * rng.normal(size=shape)


def _skewed(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    return DEVIATION * (rng.exponential(size=shape) - 1)


EQUAL: Mapping[str, Scenario] = {
    "normal": _normal,
    "rounded to whole points, so that many tie": lambda rng, shape: np.round(_normal(rng, shape)),
    "skewed (exponential)": _skewed,
    "heavy tails (t, 3 degrees of freedom)": lambda rng, shape: DEVIATION / math.sqrt(3) * rng.standard_t(3, shape),
    "one method scatters 5 times more": lambda rng, shape: (
        _normal(rng, shape) * np.repeat((1, 5), (shape[1] - 1, 1))[:, None]
    ),
    "the best method scatters 5 times more": lambda rng, shape: (
        _normal(rng, shape) * np.repeat((5, 1), (1, shape[1] - 1))[:, None]
    ),
    "spreads from 0.2 to 5 times": lambda rng, shape: _normal(rng, shape) * np.geomspace(0.2, 5, shape[1])[:, None],
    "some datasets scatter more than others": lambda rng, shape: (
        _normal(rng, shape) * np.exp(rng.normal(size=(shape[0], 1, shape[2])))
    ),
}
"""Scenarios in which all methods are equal in truth."""


def ahead(lead: float, leaders: int = 1, fails: float = 0.0) -> Scenario:
    """Return a scenario with leaders. On the share ``fails`` of datasets, each other method loses 20 points more."""

    def scores(rng: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
        scores_RMN = _normal(rng, shape)
        scores_RMN[:, :leaders] += lead
        scores_RMN[:, leaders:] -= 20 * (rng.random(scores_RMN[:, leaders:].shape) < fails)
        return scores_RMN

    return scores


LEADS: Mapping[str, Scenario] = {
    "two level on top, 3 points ahead": ahead(3.0, leaders=2),
    "a lead of 3 points": ahead(3.0),
    "a lead of 5 points": ahead(5.0),
    "a lead of 3; the others lose 20 points more on 10 % of datasets": ahead(3.0, fails=0.1),
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
"""Scenarios that break the promise: few of the measured datasets, or none, decide which method is truly best."""


def resampled(rows: Path) -> Scenario:
    """Return a scenario whose datasets are drawn from a report's few-shot rows at the largest k, in random order."""
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
    """Return the best set of Student's t-tests of all pairs, in one step."""
    beats_MM = by_pair(methods, tests.p_first, tests.p_second, 1.0) <= 0.05 / (methods - 1)
    return np.asarray(~beats_MM.any(axis=0))


def rule(methods: int, differences_PN: Floats, tests: PairedTests) -> NDArray[np.bool_]:
    """Return the best set of the engine's rule."""
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


def losses(rng: np.random.Generator, draws: int, means: list[float], datasets: int) -> Floats:
    """Return how often the recommended method loses over 1 point, its mean loss, and how often the loss bound holds.

    ``means`` are the methods' true means; a loss is the distance to the largest. Differences deviate by 4 points. The
    last method is the cheapest.
    """
    costs = {f"m{i}": Cost(operations=2.0**-i) for i in range(len(means))}
    found = []
    for _ in range(draws):
        scores_MN = np.array(means)[:, None] + 2 * DEVIATION * rng.normal(size=(len(means), datasets))
        table = {f"m{i}": {(f"d{d}", 0): float(x) for d, x in enumerate(own)} for i, own in enumerate(scores_MN)}
        verdict = replace(best_set(table), costs=costs)
        loss = max(means) - means[int(str(verdict.recommended)[1:])]
        found.append((loss > 1, loss, loss <= (verdict.loss or 0.0)))
    return np.asarray(np.asarray(found, dtype=float).mean(axis=0))


def crossed_coverage(
    rng: np.random.Generator, draws: int, seeds: int, images: int, seed_deviation: float, image_deviation: float
) -> Floats:
    """Return how often two intervals of the difference of two methods contain 0: Cochran and Cox's, Satterthwaite's.

    The methods are truly equal. A prediction is correct if the sum of four values is positive: the ease of the image
    for both methods, its ease for this method, the luck of this method with the seed, and noise.
    """

    def correct(ease_N: Floats) -> NDArray[np.bool_]:
        own_N, luck_S1 = image_deviation * rng.normal(size=images), seed_deviation * rng.normal(size=(seeds, 1))
        return np.asarray(ease_N + own_N + luck_S1 + 0.7 * rng.normal(size=(seeds, images)) > 0)

    held = np.zeros((draws, 2), dtype=bool)
    for draw in range(draws):
        ease_N = 0.5 + 1.5 * rng.normal(size=images)
        parts = variance_parts(correct(ease_N), correct(ease_N))
        share, error = np.array([parts.seed_share]), math.sqrt(parts.variance)
        weighted = float(t_quantile(0.975, share, np.array([float(seeds)]), images)[0])
        freedom = (seeds - 1) / parts.seed_share**2 if parts.seed_share else seeds * images
        held[draw] = [abs(parts.difference) <= q * error for q in (weighted, float(stdtrit(freedom, 0.975)))]
    return np.asarray(held.mean(axis=0))


def drawn_answers(rng: np.random.Generator, images: int, overconfidence: float = 0.0) -> Answers:
    """Draw predictions among six classes. Rare classes are harder; ``overconfidence`` raises the probabilities."""
    labels = rng.choice(6, images, p=(share := np.arange(1, 7)) / share.sum())
    probability = rng.integers(100, 256, images) / 255
    easier = np.linspace(-0.25, 0.05, 6)[labels] - overconfidence
    right = rng.random(images) < np.clip(probability + easier, 0, 1)
    return Answers(labels, np.where(right, labels, (labels + rng.integers(1, 6, images)) % 6), probability)


def metric_coverage(
    rng: np.random.Generator, draws: int, images: int, overconfidence: float = 0.0
) -> dict[MetricName, float]:
    """Return how often the 95 % interval of each metric contains the metric's value on 400,000 images.

    A metric without an interval gets the jackknife's, to show why it has none.
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


def numbers(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.3f}" for value in values)


def main() -> None:
    parser = command(__doc__, draws=1000, methods=6)
    parser.add_argument("--rows", type=Path, help="rows.csv of a report: its scenario alone")
    options = parser.parse_args()
    rng, sizes, draws = np.random.default_rng(0), (5, 8, 10, 16, 32), options.draws
    print(f"{options.methods} methods, {draws} draws; t / rule")
    tables = [("covers", EQUAL, covers), ("alone", LEADS, alone), ("covers, beyond the promise", BEYOND, covers)]
    if options.rows:
        tables = [("covers", {"resampled rows": resampled(options.rows)}, covers)]
    for title, scenarios, count in tables:
        print_head(title, [f"n = {n}" for n in sizes])
        for name, scenario in scenarios.items():
            drawn = (scenario(rng, (draws, options.methods, datasets)) for datasets in sizes)
            print_row(name, (numbers(count(best_sets(own, way)) for way in (one_step, rule)) for own in drawn))
    if options.rows:
        return
    print_head("loss: over 1 point / mean / bound holds", ["n = 5", "n = 8", "n = 16"])
    for means in ([2.0, 0.0], [2.0] * 5 + [0.0], [2.5, 2.0, 1.5, 1.0, 0.5, 0.0], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]):
        print_row(means, (numbers(losses(rng, draws, means, datasets)) for datasets in (5, 8, 16)))
    print_head("one dataset: deviation of seeds, of images; ours / usual", ["S = 2", "S = 3", "S = 5"])
    for images in (200, 2000):
        for seed, image in ((0.0, 0.5), (0.1, 0.5), (0.2, 0.5), (0.5, 0.5), (0.2, 0.0)):
            shares = (crossed_coverage(rng, draws, seeds, images, seed, image) for seeds in (2, 3, 5))
            print_row(f"N = {images}: {seed}, {image}", map(numbers, shares))
    print_head("metrics of one test split, interval holds", list(METRICS))
    for images in (200, 1000):
        for overconfidence in (0.0, 0.15):
            name = f"N = {images}, probabilities {100 * overconfidence:g} points too high"
            print_row(name, map("{:.3f}".format, metric_coverage(rng, draws, images, overconfidence).values()))


if __name__ == "__main__":
    main()
