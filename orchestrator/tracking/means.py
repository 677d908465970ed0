"""The MLflow runs of verdicts: for each method and k its mean score, and whether the method may be the best."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from orchestrator.analysis.rows import test_name
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.core.cell import Cell, Place
from orchestrator.store.results import Result
from orchestrator.tracking.runs import Labels, TrackedRun, grouping, rounded, run_name, summary_run, tags_of
from orchestrator.tracks import stored_track
from orchestrator.util.units import pluralize

ALL_DOMAINS = "all"
"""The value of the parameter ``domain`` in runs about all domains together."""


def mean_runs(
    results: Sequence[Result], labels: Mapping[str, Labels], verdicts: Sequence[VerdictSeries], grid: str
) -> Iterator[TrackedRun]:
    """Yield a run for each method of each verdict, with the numbers and the words of the verdict."""
    groups: dict[tuple[Place, str], list[Result]] = {}
    for result in results:
        place = result.cell.place
        for each in (place, place._replace(domain="")):
            groups.setdefault((each, labels[result.cell.id].method), []).append(result)
    names = {label.method: label.title or label.method for label in labels.values()}
    for series, verdict in [(one, verdict) for one in verdicts for verdict in one.verdicts]:
        domain, dataset, k = series.place.domain, series.dataset, verdict.k
        for score in verdict.methods:
            group = groups.get((series.place, score.method), [])
            group = [r for r in group if r.cell.shots in (k, 0) and (not dataset or dataset in _tests(r))]
            if not group:
                continue
            cell, label = group[0].cell, labels[group[0].cell.id]
            where = {"domain": domain or ALL_DOMAINS, "k": str(k)} | ({"dataset": dataset} if dataset else {})
            low, high = score.interval or (None, None)
            cost = verdict.cost(score.method)
            numbers = {
                f"{series.metric}_mean": score.mean,
                "n": float(score.n),
                "difference": score.difference,
                "difference_low": low,
                "difference_high": high,
                "trainable_parameters": cost.parameters,
                "fit_seconds": cost.seconds,
            }
            average = f"mean of {pluralize(score.n, 'seed' if dataset else 'dataset')}"
            if dataset and not score.seeds:
                average = "the same for every seed"
            yield summary_run(
                "mean",
                (*series.place[:3], domain or ALL_DOMAINS, *filter(None, (dataset,)), score.method, str(k)),
                run_name(cell, label, dataset or domain or "all domains", k, average),
                tags=tags_of(cell, label, grid)
                | where
                | {
                    "domain_title": label.domain if domain else "all domains",
                    "in_best_set": "yes" if score.method in verdict.best_set else "no",
                    "recommended": "yes" if score.method == verdict.recommended else "no",
                    "verdict": verdict.statement(names),
                    "metric": series.metric,
                },
                params=grouping(cell, label) | where | {"place": _place_text(cell, dataset or domain, k)},
                metrics=tuple((name, rounded(value), 0) for name, value in numbers.items() if value is not None),
                group=group,
            )


def _tests(result: Result) -> set[str]:
    """Return the names of a result's test splits."""
    return {test_name(result.cell.dataset.name, scored.dataset) for scored in result.evaluations}


def _place_text(cell: Cell, about: str, k: int) -> str:
    """Return the parameter ``place`` of a verdict's runs, such as ``k 4 · glyphs · few-shot · tiny-clip · strict``.

    If runs are grouped by ``place`` in MLflow, the text is the title of a group. k comes first, because MLflow cuts off
    the end of such titles. ``about``: the dataset or domain of the verdict; empty for all domains.
    """
    track = stored_track(cell.track).title
    parts = (f"k {k}" if k else "", about or "all domains", track, cell.backbone.name, cell.protocol.name)
    return " · ".join(filter(None, parts))


def curve_tags(cell: Cell, method: str, verdicts: Iterable[VerdictSeries]) -> dict[str, str]:
    """Return the tags of a curve: at which k the method is in the best set, and at which k it is recommended.

    A tag is like ``k = 1, 4``, or ``no`` if there is no such k. On a track without k, it is ``yes`` or ``no``. There
    are no tags if no verdict has the method.
    """
    here = [series for series in verdicts if series.place == cell.place and not series.dataset]
    about = [verdict for series in here for verdict in series.verdicts if method in verdict.costs]
    in_set = sorted(v.k for v in about if method in v.best_set)
    recommended = sorted(v.k for v in about if method == v.recommended)
    return {"in_best_set": _at(in_set), "recommended": _at(recommended)} if about else {}


def _at(shots: Sequence[int]) -> str:
    if list(shots) == [0]:
        return "yes"
    return f"k = {', '.join(map(str, shots))}" if shots else "no"
