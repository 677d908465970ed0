"""Verdicts: for each track, protocol, backbone, domain and k, the methods that may be the best and the one to use.

``verdicts_of`` makes them from rows. The page, tables, the terminal, MLflow and ``verdict.json`` only read them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.analysis import SMALLEST_DIFFERENCE, CostKind
from orchestrator.analysis.best_set import MIN_DATASETS, best_set
from orchestrator.analysis.comparable import methods_without_seeds, seedless_methods
from orchestrator.analysis.comparison import RULE, Comparison
from orchestrator.analysis.costs import costs_of
from orchestrator.analysis.one_dataset import best_set_on_dataset, correct_by_method
from orchestrator.analysis.raced_places import RacedPlace
from orchestrator.analysis.recommendation import Verdict, recommend
from orchestrator.analysis.rows import Row, sign_of
from orchestrator.analysis.scores import ReadPredictions
from orchestrator.store.results import Result
from orchestrator.tracks import MetricName
from orchestrator.util.grouping import grouped

_ON_IMAGES: frozenset[MetricName] = frozenset({"accuracy", "balanced_accuracy"})
"""The metrics that are means over images. Single datasets have verdicts by these metrics only."""


@dataclass(frozen=True)
class VerdictSeries:
    """The verdicts of one track, protocol, domain and backbone, by increasing k.

    Attributes:
        domain: name of the domain; empty for all domains together.
        dataset: name of the dataset if the verdicts are about a single dataset, else empty.
        metric: the metric by which the methods are compared.
    """

    track: str
    protocol: str
    domain: str
    backbone: str
    verdicts: tuple[Verdict, ...]
    dataset: str = ""
    metric: MetricName = "accuracy"

    def at(self, k: int) -> Verdict | None:
        """Return the verdict at ``k``; ``None`` if nothing was measured there."""
        return next((verdict for verdict in self.verdicts if verdict.k == k), None)

    def recommendation(self, display_names: Mapping[str, str] | None = None) -> str:
        """Return the sentence that says which method to use at which k."""
        return recommend(self.verdicts, display_names)

    def records(self, display_names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the verdicts as plain JSON types, with the fields that docs/verdict.md describes."""
        place = {
            "track": self.track,
            "protocol": self.protocol,
            "domain": self.domain or None,
            "dataset": self.dataset or None,
            "backbone": self.backbone,
            "metric": self.metric,
        }
        sentence = self.recommendation(display_names)
        return [{**place, **_record(verdict, display_names), "recommendation": sentence} for verdict in self.verdicts]


def _record(verdict: Verdict, display_names: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of a verdict, without track, protocol, domain, dataset, backbone and metric."""
    comparison, methods = verdict.comparison, []
    for score in comparison.methods:
        cost = verdict.cost(score.method)
        costs = {"trained_numbers": cost.trainable_parameters, "seconds": cost.seconds, "memory": cost.memory}
        costs |= {"operations": cost.operations, "needs_sources": cost.sources}
        methods.append({**asdict(score), "in_best_set": score.in_best_set, **costs})
    return {
        "rule": RULE,
        "k": verdict.k,
        "scope": comparison.scope,
        "n": comparison.n,
        "images": comparison.images,
        "raced": comparison.raced,
        "smallest_difference": comparison.smallest_difference,
        "outcome": comparison.outcome,
        "best_set": comparison.best_set,
        "more": comparison.more,
        "more_seeds": comparison.more_seeds,
        "recommended": verdict.recommended,
        "loss": verdict.loss,
        "cost": verdict.saves,
        "statement": verdict.statement(display_names),
        "methods": methods,
        "pairs": [asdict(pair) for pair in comparison.pairs],
    }


def verdicts_of(
    rows: Iterable[Row],
    *,
    results: Sequence[Result] = (),
    read_predictions: ReadPredictions | None = None,
    smallest_difference: float = SMALLEST_DIFFERENCE,
    saves: CostKind = "operations",
    raced: Sequence[RacedPlace] = (),
) -> tuple[VerdictSeries, ...]:
    """Return a series of verdicts for each track, protocol, backbone and domain, in the order of the rows.

    If several domains were measured, a series over all domains follows, with an empty ``domain``. A domain with fewer
    than ``MIN_DATASETS`` datasets supports no statement about other datasets. Its series is followed by a series for
    each of its datasets, if the cells have predictions and the metric is accuracy or balanced accuracy.

    Only rows that a mean over test splits includes (``Row.averaged``) are compared.

    Args:
        rows: the rows to compare; ``comparable.comparable_rows`` selects them.
        results: the results of the rows' cells.
        read_predictions: reads the predictions of results; without it, single datasets have no series.
        smallest_difference: in points of the metric. Methods that differ by less are level.
        saves: the kind of cost that the recommendation saves first.
        raced: the races of the grid. At the track, protocol, backbone, domain and k of a race, its decisions replace
            the tests. A race compares methods within one domain, so its track, protocol and backbone have no series
            over all domains.
    """
    races = {(race.place, race.k): race for race in raced}
    averaged = (row for row in rows if row.averaged)
    places = grouped(averaged, lambda row: (row.track, row.protocol, row.backbone))
    every: list[VerdictSeries] = []
    by_id = {result.cell.id: result for result in results}
    for (track, protocol, backbone), here in places.items():
        groups = grouped(here, lambda row: row.domain)
        if len(groups) > 1 and not any(place[:3] == (track, protocol, backbone) for place, _ in races):
            groups[""] = [row for own in groups.values() for row in own]
        for domain, own in groups.items():
            own_races = {k: race for (place, k), race in races.items() if place == (track, protocol, backbone, domain)}
            comparisons = _comparisons(own, smallest_difference, own_races)
            verdicts = (Verdict(k, found, costs_of(rows, by_id), saves) for k, found, rows in comparisons)
            metric = own[0].metric
            every.append(VerdictSeries(track, protocol, domain, backbone, tuple(verdicts), metric=metric))
            if domain and read_predictions is not None and metric in _ON_IMAGES:
                every += _dataset_verdicts(own, by_id, read_predictions, smallest_difference, saves)
    return tuple(every)


def _dataset_verdicts(
    rows: Sequence[Row],
    results: Mapping[str, Result],
    read_predictions: ReadPredictions,
    smallest_difference: float,
    saves: CostKind,
) -> Iterable[VerdictSeries]:
    """Yield a series for each single dataset of one track, protocol, domain and backbone.

    With ``MIN_DATASETS`` test splits or more, no series is yielded: a verdict over datasets is then possible.
    """
    tests = dict.fromkeys(row.test for row in rows)
    if len(tests) >= MIN_DATASETS:
        return
    fixed, without_seeds = seedless_methods(rows), methods_without_seeds(rows)
    for test in tests:
        by_k = _rows_by_k([row for row in rows if row.test == test], fixed)
        cell_ids = {row.cell_id for own in by_k.values() for row in own}
        predictions = read_predictions([result for cell_id, result in results.items() if cell_id in cell_ids])
        verdicts = []
        for k, own in by_k.items():
            if (correct := correct_by_method(own, predictions)) is not None:
                comparison = best_set_on_dataset(
                    correct, without_seeds=without_seeds, smallest_difference=smallest_difference
                )
                verdicts.append(Verdict(k, comparison, costs_of(own, results), saves))
        if verdicts:
            first = rows[0]
            place = (first.track, first.protocol, first.domain, first.backbone)
            yield VerdictSeries(*place, tuple(verdicts), test, first.metric)


def _comparisons(
    rows: Sequence[Row], smallest_difference: float, races: Mapping[int, RacedPlace]
) -> Iterable[tuple[int, Comparison, Sequence[Row]]]:
    """Yield a triple for every k: the k, the comparison over datasets, and the compared rows.

    ``races``: the races by k.
    """
    without_seeds, sign = methods_without_seeds(rows), sign_of(rows[0].metric)
    for k, own in _rows_by_k(rows, seedless_methods(rows)).items():
        scores: dict[str, dict[tuple[str, int], float]] = {}
        for row in own:
            # A test split may have the same name in two domains.
            scores.setdefault(row.method, {})[f"{row.domain}/{row.test}", row.seed] = sign * row.score
        decisions, goes_on = (races[k].decisions, races[k].race.next is not None) if k in races else (None, False)
        found = best_set(scores, without_seeds=without_seeds, smallest_difference=smallest_difference, raced=decisions)
        # If lower scores are better, all signs were flipped. Means get their sign back. Leads keep the flipped sign, so
        # that the better method has a positive lead.
        methods = tuple(replace(one, mean=sign * one.mean + 0.0) for one in found.methods)
        yield k, replace(found, methods=methods, race_goes_on=goes_on), own


def _rows_by_k(rows: Sequence[Row], fixed: Collection[str]) -> dict[int, list[Row]]:
    """Return the rows that are compared at each k. The rows of the ``fixed`` labels are compared at every k."""
    ks = sorted({row.k for row in rows} - {0}) or [0]
    return {k: [row for row in rows if row.k == k or row.method in fixed] for k in ks}
