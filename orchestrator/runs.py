"""What a tracked run says: names, parameters, metrics and tags of cells, aggregates and curves. Pure; no MLflow.

Four kinds of runs, told apart by the tag ``kind``:

``cell``
    one finished cell.
``aggregate``
    the seeds of one (backbone, dataset, k, method): mean, sample standard deviation, n.
``curve``
    one (backbone, domain, method): ``accuracy_by_shots`` with step = k, so that comparing two of them draws accuracy
    against k.
``grid``
    the whole grid: headline numbers, and the report as artifacts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, stdev

from orchestrator.cell import Cell
from orchestrator.results import Evaluation, Result

Metric = tuple[str, float, int]
"""Name, value, step."""

KEY = "run_key"
CONTENT = "content"


@dataclass(frozen=True)
class Labels:
    """What a reader wants to see beside a cell.

    Attributes:
        method: the method's name in this grid; differs between two settings of one method.
        domain: the domain's title.
        published: the paper's accuracy, per cent, if it prints one.
    """

    method: str
    domain: str
    published: float | None = None


Describe = Callable[[Result], Labels]


@dataclass(frozen=True)
class TrackedRun:
    """One run as it should be.

    Attributes:
        key: what it is about; one finished run per key and experiment.
        kind: see the module's docstring.
        name: for people.
        start, end: milliseconds since the epoch.
        folder: what to attach as artifacts, if anything.
        inputs: fingerprint of what it was computed from.
    """

    key: str
    kind: str
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    metrics: tuple[Metric, ...]
    start: int
    end: int
    folder: Path | None = None
    inputs: str = ""

    @property
    def content(self) -> str:
        """Fingerprint of all it says; a tracked run with another one is out of date."""
        listing = _listing(self.folder) if self.folder else []
        said = [self.name, sorted(self.tags.items()), sorted(self.params.items()), self.metrics, self.end]
        return hashlib.sha256(json.dumps([said, self.inputs, listing]).encode()).hexdigest()[:16]


def summing_up(run: TrackedRun, others: Iterable[TrackedRun]) -> TrackedRun:
    """The run with a content that changes whenever that of any of the others does."""
    digest = hashlib.sha256("".join(other.content for other in others).encode())
    return replace(run, inputs=digest.hexdigest())


def _listing(folder: Path) -> list[tuple[str, int]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted((path.relative_to(folder).as_posix(), path.stat().st_size) for path in files)


def headline(result: Result) -> Evaluation | None:
    """The evaluation on the target itself; ``None`` when only other datasets were scored."""
    return next((found for found in result.evaluations if found.dataset == result.cell.dataset.name), None)


def accuracies(result: Result) -> tuple[float, float]:
    """(accuracy, zero-shot accuracy): on the target, or the mean over the datasets that were scored instead."""
    target = headline(result)
    scored = [target] if target else result.evaluations
    return fmean(e.accuracy for e in scored), fmean(e.accuracy_zero_shot for e in scored)


def cell_run(result: Result, labels: Labels, grid: str) -> TrackedRun:
    """The run of one finished cell."""
    cell, accuracy_pair = result.cell, accuracies(result)
    accuracy, zero_shot = accuracy_pair
    metrics = {
        "accuracy": accuracy,
        "accuracy_zero_shot": zero_shot,
        "gain_over_zero_shot": accuracy - zero_shot,
        "trainable_parameters": float(result.trainable_parameters),
        "fit_seconds": result.timings.fit_seconds,
        "eval_seconds": result.timings.eval_seconds,
        "peak_memory_mib": result.peak_memory_mib,
    }
    if labels.published is not None:
        metrics |= {"accuracy_published": labels.published, "delta_published": accuracy - labels.published}
    if len(result.evaluations) > 1 or headline(result) is None:
        metrics |= {f"accuracy/{_safe(e.dataset)}": e.accuracy for e in result.evaluations}
    curves = [
        (_safe(name), float(value), epoch)
        for name, values in sorted(result.curves.items())
        for epoch, value in enumerate(values, start=1)
    ]
    params = _grouping(cell, labels) | {"dataset": cell.dataset.name, "k": str(cell.shots), "seed": str(cell.seed)}
    for name, value in cell.method.settings:
        params[f"setting_{name}" if name in params else _safe(name)] = str(value)
    end = _milliseconds(result.manifest.finished_at)
    return TrackedRun(
        key=cell.id,
        kind="cell",
        name=f"{labels.method} {cell.dataset.name} k{cell.shots} s{cell.seed}",
        tags=_tags(cell, labels, grid)
        | {"cell": cell.id, "dataset": cell.dataset.name, "k": str(cell.shots), "seed": str(cell.seed)}
        | ({"commit": result.manifest.commit} if result.manifest.commit else {}),
        params=params,
        metrics=(*((name, value, 0) for name, value in metrics.items()), *curves),
        start=end - round(1000 * result.timings.total),
        end=end,
    )


def summary_runs(
    results: Sequence[Result], describe: Describe, grid: str, report: Path | None = None
) -> list[TrackedRun]:
    """Aggregates, curves and, last, the grid's own run. Nothing for no results."""
    if not results:
        return []
    labels = {result.cell.id: describe(result) for result in results}
    seeds: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    lines: dict[tuple[str, ...], list[Result]] = defaultdict(list)
    for result in results:
        cell, label = result.cell, labels[result.cell.id]
        line = (cell.track, cell.protocol.name, cell.sources_rule, cell.backbone.name, cell.domain, label.method)
        lines[line].append(result)
        seeds[(*line, cell.dataset.name, str(cell.shots))].append(result)
    runs = [_aggregate(key, group, labels[group[0].cell.id], grid) for key, group in sorted(seeds.items())]
    drawn: dict[tuple[str, ...], set[int]] = defaultdict(set)
    for result in results:
        drawn[_panel(result.cell)].add(result.cell.shots)
    runs += [
        _curve(key, group, labels[group[0].cell.id], grid, sorted(drawn[_panel(group[0].cell)] - {0}))
        for key, group in sorted(lines.items())
    ]
    return [*runs, _grid(results, labels, grid, report)]


def _aggregate(key: tuple[str, ...], group: Sequence[Result], labels: Labels, grid: str) -> TrackedRun:
    cell = group[0].cell
    scores = [accuracies(result) for result in group]
    mean = fmean(score for score, _ in scores)
    metrics = {
        "accuracy_mean": mean,
        "n": float(len(group)),
        "gain_over_zero_shot": mean - fmean(zero_shot for _, zero_shot in scores),
    }
    if len(group) > 1:
        metrics["accuracy_std"] = stdev(score for score, _ in scores)
    if labels.published is not None:
        metrics |= {"accuracy_published": labels.published, "delta_published": mean - labels.published}
    where = {"dataset": cell.dataset.name, "k": str(cell.shots)}
    return _summary(
        "aggregate",
        key,
        f"{labels.method} {cell.dataset.name} k{cell.shots} mean",
        tags=_tags(cell, labels, grid) | where,
        params=_grouping(cell, labels) | where,
        metrics=tuple((name, value, 0) for name, value in metrics.items()),
        group=group,
    )


def _panel(cell: Cell) -> tuple[str, ...]:
    """What curves are drawn together for."""
    return (cell.track, cell.protocol.name, cell.backbone.name, cell.domain)


def _curve(
    key: tuple[str, ...], group: Sequence[Result], labels: Labels, grid: str, drawn: Sequence[int]
) -> TrackedRun:
    """Accuracy against k: per seed the mean over datasets, then mean and sample deviation of those over seeds.

    Only seeds that have every dataset count. A method without a support has one accuracy, shown at each of the k that
    are ``drawn`` for the others.
    """
    cell = group[0].cell
    by_shots: dict[int, dict[int, dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for result in group:
        by_shots[result.cell.shots][result.cell.seed][result.cell.dataset.name] = accuracies(result)[0]
    if set(by_shots) == {0} and drawn:
        by_shots = defaultdict(lambda: defaultdict(dict), dict.fromkeys(drawn, by_shots[0]))
    metrics: list[Metric] = []
    for shots, seeds in sorted(by_shots.items()):
        datasets = {name for scores in seeds.values() for name in scores}
        means = [fmean(scores.values()) for scores in seeds.values() if scores.keys() == datasets]
        if means:
            metrics.append(("accuracy_by_shots", fmean(means), shots))
        if len(means) > 1:
            metrics.append(("accuracy_by_shots_std", stdev(means), shots))
    return _summary(
        "curve",
        key,
        f"{labels.method} {cell.domain} {cell.backbone.name}",
        tags=_tags(cell, labels, grid),
        params=_grouping(cell, labels),
        metrics=tuple(metrics),
        group=group,
    )


def _grid(results: Sequence[Result], labels: Mapping[str, Labels], grid: str, report: Path | None) -> TrackedRun:
    """Headline numbers: each method at the largest k it was run at, the mean over everything else."""
    by_method: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        by_method[labels[result.cell.id].method].append(result)
    metrics: list[Metric] = [
        ("cells", float(len(results)), 0),
        ("fit_seconds_total", sum(result.timings.fit_seconds for result in results), 0),
    ]
    for method, group in sorted(by_method.items()):
        most = max(result.cell.shots for result in group)
        scores = [accuracies(result) for result in group if result.cell.shots == most]
        mean = fmean(score for score, _ in scores)
        metrics.append((f"accuracy/{_safe(method)}", mean, 0))
        metrics.append((f"gain_over_zero_shot/{_safe(method)}", mean - fmean(zero for _, zero in scores), 0))
    return _summary(
        "grid",
        (grid,),
        f"{grid} ({len(results)} cells)",
        tags={"grid": grid},
        params={"grid": grid, "methods": ", ".join(sorted(by_method))},
        metrics=tuple(metrics),
        group=results,
        folder=report if report is not None and report.is_dir() else None,
    )


def _summary(
    kind: str,
    key: Iterable[str],
    name: str,
    *,
    tags: Mapping[str, str],
    params: Mapping[str, str],
    metrics: tuple[Metric, ...],
    group: Sequence[Result],
    folder: Path | None = None,
) -> TrackedRun:
    ends = [_milliseconds(result.manifest.finished_at) for result in group]
    cells = sorted(f"{result.cell.id} {result.manifest.finished_at}" for result in group)
    return TrackedRun(
        key=f"{kind}:{'/'.join(key)}",
        kind=kind,
        name=name,
        tags=tags,
        params=params,
        metrics=metrics,
        start=min(ends),
        end=max(ends),
        folder=folder,
        inputs=hashlib.sha256("\n".join(cells).encode()).hexdigest(),
    )


def _tags(cell: Cell, labels: Labels, grid: str) -> dict[str, str]:
    return {"grid": grid, **_grouping(cell, labels), "domain_title": labels.domain}


def _grouping(cell: Cell, labels: Labels) -> dict[str, str]:
    return {
        "track": cell.track,
        "protocol": cell.protocol.name,
        "sources_rule": cell.sources_rule,
        "backbone": cell.backbone.name,
        "domain": cell.domain,
        "method": labels.method,
    }


def _safe(name: str) -> str:
    """A name MLflow takes: letters, digits, and ``_ - . : /`` and space."""
    return re.sub(r"[^\w\-. :/]", "_", name)


def _milliseconds(moment: str) -> int:
    return round(1000 * datetime.fromisoformat(moment).timestamp())
