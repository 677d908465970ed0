"""Means over seeds: a mean, a sample standard deviation (n - 1) and the number of seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Summary:
    """A mean over ``n`` repetitions and their sample standard deviation, which is ``None`` for one repetition."""

    mean: float
    std: float | None
    n: int


def summarize(values: Sequence[float]) -> Summary:
    """Return the mean and sample standard deviation (ddof 1) of ``values``. Raises ``ValueError`` if there are none."""
    n = len(values)
    if n == 0:
        raise ValueError("nothing to summarize")
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(mean, None, 1)
    return Summary(mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1)), n)


def seed_means(scores: Mapping[str, Mapping[int, float]], datasets: Sequence[str]) -> dict[int, float]:
    """Return for each seed the mean over ``datasets`` of ``scores[dataset][seed]``.

    A seed that lacks a dataset is left out, because its mean would be over easier or harder datasets.
    """
    if not datasets:
        return {}
    complete = set.intersection(*(set(scores.get(dataset, {})) for dataset in datasets))
    return {seed: math.fsum(scores[d][seed] for d in datasets) / len(datasets) for seed in sorted(complete)}
