"""Makes the MLflow runs that summarise cells: means over seeds and over datasets, curves, and the whole grid."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from orchestrator.analysis.rows import row_list
from orchestrator.analysis.scores import scores_of
from orchestrator.analysis.seed_means import seed_means
from orchestrator.analysis.verdict_series import VerdictSeries
from orchestrator.store.results import Result
from orchestrator.tracking.means import curve_tags, mean_runs
from orchestrator.tracking.runs import (
    SELECTED_ON_TEST,
    Describe,
    Labels,
    Metric,
    TrackedRun,
    grouping,
    rounded,
    run_name,
    summary_run,
    tags_of,
)
from orchestrator.tracks import stored_track
from orchestrator.util.grouping import grouped
from orchestrator.util.units import pluralize


def summary_runs(
    results: Sequence[Result],
    describe: Describe,
    grid: str,
    report: Path | None = None,
    verdicts: Sequence[VerdictSeries] = (),
) -> list[TrackedRun]:
    """Return the aggregates, the means, the curves and, last, the run of the whole grid; empty without results.

    ``report``: folder to attach to the run of the whole grid. ``verdicts``: verdicts of the grid, in which a method has
    the label that ``describe`` gives it.
    """
    if not results:
        return []
    labels = {result.cell.id: describe(result) for result in results}

    def line_of(result: Result) -> tuple[str, ...]:
        cell, method = result.cell, labels[result.cell.id].method
        return cell.track, cell.protocol.name, cell.sources_rule, cell.backbone.name, cell.domain, method

    lines = grouped(results, line_of)
    seeds = grouped(results, lambda result: (*line_of(result), result.cell.dataset.name, str(result.cell.shots)))
    panels: dict[tuple[str, ...], dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for cell in (result.cell for result in results):
        panels[cell.place][cell.shots].add(cell.dataset.name)
    runs = [_aggregate(key, group, labels[group[0].cell.id], grid) for key, group in sorted(seeds.items())]
    runs += mean_runs(results, labels, verdicts, grid)
    runs += [
        _curve(key, group, labels[group[0].cell.id], grid, panels[group[0].cell.place], verdicts)
        for key, group in sorted(lines.items())
    ]
    return [*runs, _grid(results, labels, grid, report)]


def _aggregate(key: tuple[str, ...], group: Sequence[Result], labels: Labels, grid: str) -> TrackedRun:
    cell = group[0].cell
    scores = [result.accuracies for result in group]
    mean = fmean(score for score, _ in scores)
    found = _mean_and_std([score for score, _ in scores])
    metrics = {
        **{f"accuracy_{name}": value for name, value in found.items()},
        "n": float(len(group)),
        "gain_over_zero_shot": rounded(mean - fmean(zero_shot for _, zero_shot in scores)),
    }
    if labels.published is not None:
        metrics |= {"accuracy_published": labels.published, "delta_published": rounded(mean - labels.published)}
    shifted = [value for result in group if (value := result.shifted_accuracy) is not None]
    metrics |= {f"accuracy_shifted_{name}": value for name, value in _mean_and_std(shifted).items()}
    where = {"dataset": cell.dataset.name, "k": str(cell.shots)}
    deviation = f" ± {found['std']:.2f}" if "std" in found else ""
    return summary_run(
        "aggregate",
        key,
        run_name(cell, labels, cell.dataset.name, cell.shots, f"mean of {pluralize(len(group), 'seed')}"),
        tags=tags_of(cell, labels, grid) | where | {"accuracy": f"{found['mean']:.2f}{deviation} (n = {len(group)})"},
        params=grouping(cell, labels) | where,
        metrics=tuple((name, value, 0) for name, value in metrics.items()),
        group=group,
    )


def _mean_and_std(values: Sequence[float]) -> dict[str, float]:
    """Return ``mean`` and ``std``, the sample standard deviation. ``std`` needs two values, ``mean`` needs one."""
    found = {"mean": rounded(fmean(values))} if values else {}
    return found | ({"std": rounded(stdev(values))} if len(values) > 1 else {})


def _averaged(result: Result) -> tuple[float, float]:
    """Return accuracy and zero-shot accuracy, per cent, of the test splits that count in the report's means.

    On the track ``ood`` these are the shifted test sets, on ``base_to_new`` the harmonic mean, elsewhere the target.
    """
    rows = row_list([result], {result.cell.id: ""}, scores_of([result]))
    rows = [row for row in rows if row.averaged] or rows
    return fmean(row.accuracy for row in rows), fmean(row.accuracy_zero_shot for row in rows)


def _curve(
    key: tuple[str, ...],
    group: Sequence[Result],
    labels: Labels,
    grid: str,
    panel: Mapping[int, Collection[str]],
    verdicts: Sequence[VerdictSeries],
) -> TrackedRun:
    """Return the run with the curve of accuracy against k.

    The accuracy of a seed is its mean over datasets. At each k, the curve has the mean and the standard deviation of
    these accuracies. Seeds that lack a dataset are left out. A method without support images has the same accuracies at
    every k, on the datasets in ``panel``. The name says if the method lacks datasets that it has at another k, or that
    others have at the same k.

    ``panel``: the datasets of all methods in the same chart, by k.
    """
    cell = group[0].cell
    by_shots: dict[int, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in group:
        by_shots[result.cell.shots][result.cell.dataset.name][result.cell.seed] = _averaged(result)[0]
    if set(by_shots) == {0} and set(panel) != {0}:
        own = by_shots.pop(0)
        by_shots |= {shots: {name: own[name] for name in own if name in panel[shots]} for shots in set(panel) - {0}}
    fewer = any(set(panel[shots]) - set(by_dataset) for shots, by_dataset in by_shots.items())
    fewer |= len({frozenset(by_dataset) for by_dataset in by_shots.values()}) > 1
    metrics: list[Metric] = []
    for shots, by_dataset in sorted(by_shots.items()):
        means = list(seed_means(by_dataset, list(by_dataset)).values())
        metrics += _step_metrics("accuracy_by_shots", means, shots)
        metrics += [(f"{name}_at_k/{shots:02d}", value, 0) for name, value in _mean_and_std(means).items()]
    if stored_track(cell.track).scored_after_epochs:
        metrics += _epoch_metrics(group)
    return summary_run(
        "curve",
        key,
        run_name(cell, labels, f"{cell.domain} · {cell.backbone.name}", repeats="on fewer datasets" * fewer),
        tags=tags_of(cell, labels, grid) | curve_tags(cell, labels.method, verdicts),
        # The parameter sources_rule is left out. It differs between methods with and without sources, so MLflow would
        # show it next to every method's name.
        params={name: value for name, value in grouping(cell, labels).items() if name != "sources_rule"},
        metrics=tuple(metrics),
        group=group,
    )


def _step_metrics(name: str, means: Sequence[float], step: int) -> list[Metric]:
    """Return the metrics of one step of a curve: ``name`` and, for several values, ``name_std``."""
    suffix = {"mean": "", "std": "_std"}
    return [(name + suffix[what], value, step) for what, value in _mean_and_std(means).items()]


def _epoch_metrics(group: Sequence[Result]) -> list[Metric]:
    """Return the curve of accuracy after each epoch at the largest k: mean and standard deviation over seeds.

    The accuracy of a seed is its mean over targets. Seeds that lack a target are left out.
    """
    most = max(result.cell.shots for result in group)
    by_epoch: dict[int, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in group:
        if result.cell.shots == most:
            for epoch, accuracy in enumerate(result.curves.get("accuracy", ()), start=1):
                by_epoch[epoch][result.cell.dataset.name][result.cell.seed] = accuracy
    targets = list(dict.fromkeys(result.cell.dataset.name for result in group if result.cell.shots == most))
    metrics: list[Metric] = []
    for epoch, by_dataset in sorted(by_epoch.items()):
        metrics += _step_metrics("accuracy_by_epoch", list(seed_means(by_dataset, targets).values()), epoch)
    return metrics


def _by_target(results: Sequence[Result]) -> Mapping[tuple[object, object], list[tuple[float, float]]]:
    """Return (backbone, dataset) -> accuracy and zero-shot accuracy of each seed, at the largest k.

    The caller averages over the seeds of each dataset first. Otherwise a dataset that lacks a seed would count less.
    """
    most = max(result.cell.shots for result in results)
    at_most = (result for result in results if result.cell.shots == most)
    by_target = grouped(at_most, lambda result: (result.cell.backbone, result.cell.dataset))
    return {target: [_averaged(result) for result in own] for target, own in by_target.items()}


def _grid(results: Sequence[Result], labels: Mapping[str, Labels], grid: str, report: Path | None) -> TrackedRun:
    """Return the run of the whole grid: each method's mean over datasets, backbones and seeds at its largest k.

    Different tracks or protocols are never averaged. If a grid has several, they are part of the metric's name. If a
    method lacks a dataset or a backbone, its mean is not comparable, and is named ``accuracy_on_fewer_datasets``. So is
    that of a method without the largest k of the others: ``accuracy_at_k_4``. Means of the gain are named likewise.
    """
    groups = grouped(results, lambda result: (result.cell.track, result.cell.protocol.name))
    metrics: list[Metric] = [
        ("cells", float(len(results)), 0),
        ("fit_seconds_total", sum(result.timings.fit_seconds for result in results), 0),
    ]
    for (track, protocol), own_results in sorted(groups.items()):
        by_method = grouped(own_results, lambda result: labels[result.cell.id].method)
        prefix = f"{track}/{protocol}/" if len(groups) > 1 else ""
        scores = {method: _by_target(group) for method, group in sorted(by_method.items())}
        largest = {method: max(result.cell.shots for result in group) for method, group in by_method.items()}
        every = set().union(*scores.values())
        for method, own in scores.items():
            mean, zero_shot = (fmean(fmean(pair[i] for pair in seeds) for seeds in own.values()) for i in (0, 1))
            fewer = "" if own.keys() == every else "_on_fewer_datasets"
            if largest[method] not in (0, max(largest.values())):
                fewer += f"_at_k_{largest[method]}"
            metrics.append((f"accuracy{fewer}/{prefix}{method}", rounded(mean), 0))
            metrics.append((f"gain_over_zero_shot{fewer}/{prefix}{method}", rounded(mean - zero_shot), 0))
    selects = any(result.cell.selects_on_test for result in results)
    return summary_run(
        "grid",
        (grid,),
        f"{grid} ({len(results)} cells)" + (f" (some {SELECTED_ON_TEST})" if selects else ""),
        tags={"grid": grid, "selects_on_test": str(selects).lower()},
        params={"grid": grid, "methods": ", ".join(sorted({label.method for label in labels.values()}))},
        metrics=tuple(metrics),
        group=results,
        folder=report if report is not None and report.is_dir() else None,
    )
