"""The verdicts of a grid: for each place and k, the methods that may be the best and the one to use.

``verdicts_of`` makes them from rows. The page, tables, the terminal, MLflow and ``verdict.json`` only read them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator.analysis import SMALLEST_DIFFERENCE, CostKind
from orchestrator.analysis.best_set import MIN_DATASETS, best_set
from orchestrator.analysis.comparable import seedless_methods
from orchestrator.analysis.costs import costs_of
from orchestrator.analysis.metrics import METRICS
from orchestrator.analysis.one_dataset import best_set_on_dataset, correct_by_method
from orchestrator.analysis.raced_places import RacedPlace
from orchestrator.analysis.recommendation import recommend
from orchestrator.analysis.rows import Row
from orchestrator.analysis.scores import ReadPredictions
from orchestrator.analysis.verdict import RULE, Verdict
from orchestrator.core.cell import Place
from orchestrator.store.results import Result
from orchestrator.tracks import MetricName
from orchestrator.util.grouping import grouped

_ON_IMAGES: frozenset[MetricName] = frozenset({"accuracy", "balanced_accuracy"})
"""The metrics that are means over images. Single datasets have verdicts by these metrics only."""


@dataclass(frozen=True)
class VerdictSeries:
    """The verdicts of one track, protocol, domain and backbone, by increasing k.

    Attributes:
        place: where the methods were compared; its domain is empty for all domains together.
        dataset: name of the dataset if the verdicts are about a single dataset, else empty.
        metric: the metric by which the methods are compared.
    """

    place: Place
    verdicts: tuple[Verdict, ...]
    dataset: str = ""
    metric: MetricName = "accuracy"

    def at(self, k: int) -> Verdict | None:
        """Return the verdict at ``k``; ``None`` if nothing was measured there."""
        return next((verdict for verdict in self.verdicts if verdict.k == k), None)

    def is_about(self, place: Place) -> bool:
        """Return whether results at a place take part in the verdicts."""
        return self.place in (place, place._replace(domain=""))

    def recommendation(self, display_names: Mapping[str, str] | None = None) -> str:
        """Return the sentence that says which method to use at which k."""
        return recommend(self.verdicts, display_names)

    def records(self, display_names: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the verdicts as plain JSON types, with the fields that docs/verdict.md describes."""
        track, protocol, backbone, domain = self.place
        place = {"track": track, "protocol": protocol, "domain": domain or None, "dataset": self.dataset or None}
        place |= {"backbone": backbone, "metric": self.metric}
        sentence = self.recommendation(display_names)
        return [{**place, **_record(verdict, display_names), "recommendation": sentence} for verdict in self.verdicts]


def _record(verdict: Verdict, display_names: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the fields of a verdict, without track, protocol, domain, dataset, backbone and metric."""
    methods = []
    for score in verdict.methods:
        cost = verdict.cost(score.method)
        costs = {"trained_numbers": cost.parameters, "seconds": cost.seconds, "memory": cost.memory}
        costs |= {"operations": cost.operations, "needs_sources": cost.sources}
        methods.append({**asdict(score), "in_best_set": score.in_best_set, **costs})
    return {
        "rule": RULE,
        "k": verdict.k,
        "scope": verdict.scope,
        "n": verdict.n,
        "images": verdict.images,
        "same_supports": verdict.same_supports,
        "raced": verdict.raced,
        "smallest_difference": verdict.smallest_difference,
        "outcome": verdict.outcome,
        "best_set": verdict.best_set,
        "more": verdict.more,
        "more_seeds": verdict.more_seeds,
        "recommended": verdict.recommended,
        "loss": verdict.loss,
        "cost": verdict.saves,
        "statement": verdict.statement(display_names),
        "methods": methods,
        "pairs": [asdict(pair) for pair in verdict.pairs],
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

    If several domains were measured, a series over all domains follows, with an empty ``domain``. It has a verdict at
    each k that at least two domains have. A domain with fewer than ``MIN_DATASETS`` datasets supports no statement
    about other datasets. Its series is followed by a series for each of its datasets, if the cells have predictions and
    the metric is accuracy or balanced accuracy.

    Only rows that a mean over test splits includes (``Row.averaged``) are compared.

    Args:
        rows: the rows to compare; ``comparable.comparable_rows`` selects them.
        results: the results of the rows' cells.
        read_predictions: reads the predictions of results; without it, single datasets have no series.
        smallest_difference: in points of the metric. Methods that differ by less are level.
        saves: the kind of cost that the recommendation compares second, after the need for source models.
        raced: the races of the grid. At the track, protocol, backbone, domain and k of a race, its decisions replace
            the tests. A race compares methods within one domain, so its track, protocol and backbone have no series
            over all domains.
    """
    races = {(race.place, race.k): race for race in raced}
    places = grouped((row for row in rows if row.averaged), lambda row: row.place._replace(domain=""))
    every: list[VerdictSeries] = []
    by_id = {result.cell.id: result for result in results}

    def with_costs(found: Verdict, k: int, compared: Sequence[Row]) -> Verdict:
        return replace(found, k=k, costs=costs_of(compared, by_id), saves=saves)

    for every_domain, here in places.items():
        groups = grouped(here, lambda row: row.place)
        if len(groups) > 1 and all(race.place._replace(domain="") != every_domain for race in raced):
            groups[every_domain] = [row for own in groups.values() for row in own]
        for place, own in groups.items():
            fixed = seedless_methods((row.method, row.k, row.seed) for row in own)
            without_seeds = fixed | _methods_without_support(own)
            verdicts = []
            for k, compared in _rows_by_k(own, fixed).items():
                if not place.domain and len({row.domain for row in compared}) < 2:
                    continue  # a verdict about one domain is none about all of them
                found = _over_datasets(compared, without_seeds, smallest_difference, races.get((place, k)))
                verdicts.append(with_costs(found, k, compared))
            series = VerdictSeries(place, tuple(verdicts), metric=own[0].metric)
            every += [series] if verdicts else []
            tests = grouped(own, lambda row: row.test) if place.domain and series.metric in _ON_IMAGES else {}
            if read_predictions is None or len(tests) >= MIN_DATASETS:
                continue
            for test, rows_of_test in tests.items():
                by_k = _rows_by_k(rows_of_test, fixed)
                cell_ids = {row.cell_id for compared in by_k.values() for row in compared}
                predictions = read_predictions([result for cell_id, result in by_id.items() if cell_id in cell_ids])
                verdicts = []
                for k, compared in by_k.items():
                    if (correct := correct_by_method(compared, predictions)) is not None:
                        found = best_set_on_dataset(correct, without_seeds, smallest_difference)
                        verdicts.append(with_costs(found, k, compared))
                if verdicts:
                    every.append(replace(series, verdicts=tuple(verdicts), dataset=test))
    return tuple(every)


def _methods_without_support(rows: Iterable[Row]) -> frozenset[str]:
    """Return the labels of methods that declare that they use no support images."""
    from bolt.methods import METHODS  # imports torch

    declared = {name for name, method in METHODS.items() if not method.uses_support}
    return frozenset(row.method for row in rows if row.method_name in declared)


def _rows_by_k(rows: Sequence[Row], fixed: Collection[str]) -> dict[int, list[Row]]:
    """Return the rows that are compared at each k.

    The rows of the ``fixed`` labels are compared at every k, on the test splits that other rows of this k have.
    """
    tests = {k: {(row.domain, row.test) for row in own} for k, own in grouped(rows, lambda row: row.k).items()}
    return {
        k: [row for row in rows if row.k == k or (row.method in fixed and (row.domain, row.test) in tests[k])]
        for k in sorted(tests.keys() - {0}) or [0]
    }


def _over_datasets(
    rows: Sequence[Row], without_seeds: Collection[str], smallest_difference: float, race: RacedPlace | None
) -> Verdict:
    """Return the verdict over datasets at one k."""
    sign = METRICS[rows[0].metric].sign
    scores: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        # A test split may have the same name in two domains.
        scores.setdefault(row.method, {})[f"{row.domain}/{row.test}", row.seed] = sign * row.score
    decisions, goes_on = (race.decisions, race.race.next is not None) if race else (None, False)
    found = best_set(scores, without_seeds=without_seeds, smallest_difference=smallest_difference, raced=decisions)
    # If lower scores are better, all signs were flipped. Means get their sign back. Leads keep the flipped sign, so
    # that the better method has a positive lead.
    methods = tuple(replace(one, mean=sign * one.mean + 0.0) for one in found.methods)
    drawn = [row for row in rows if row.k]
    shared = len({(row.domain, row.dataset) for row in drawn}) < len({(row.domain, row.test) for row in drawn})
    return replace(found, methods=methods, race_goes_on=goes_on, same_supports=shared)
