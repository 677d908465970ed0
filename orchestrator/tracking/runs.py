"""The content of tracked runs: names, parameters, metrics and tags, as plain data without MLflow.

The tag ``kind`` distinguishes five kinds of runs; ``summaries.py`` and ``means.py`` make all but the first:

``cell``
    one finished cell.
``aggregate``
    the seeds of one (backbone, dataset, k, method): mean, sample standard deviation, n.
``mean``
    one method of a verdict: its mean over datasets, or over seeds if the verdict is about one dataset, and whether the
    method may be the best. ``domain`` is ``all`` for all domains together.
``curve``
    one (backbone, domain, method). The metric ``accuracy_by_shots`` has step = k, so MLflow's comparison draws it
    against k. ``mean_at_k/04`` and ``std_at_k/04`` are the same numbers for the table below the chart. On the ``meta``
    track, ``accuracy_by_epoch`` has step = epoch.
``grid``
    the whole grid: its main numbers, and the report as artifacts.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from orchestrator.core.cell import Cell
from orchestrator.store.results import Result
from orchestrator.tracks import stored_track
from orchestrator.util.grouping import grouped

Metric = tuple[str, float, int]
"""Name, value, step."""

SELECTED_ON_TEST = "selected on the test set"

_LONGEST_NAME = 250
KEY = "run_key"
CONTENT = "content"


@dataclass(frozen=True)
class Labels:
    """Names and numbers that a run has in addition to the result of its cell.

    Attributes:
        method: the method's label in this grid; two settings of one method have different labels.
        domain: the domain's title.
        published: the accuracy that the paper prints, in per cent; ``None`` if it prints none.
        colour: the method's colour in the report, as ``#rrggbb``; if empty, MLflow chooses one.
        title: the method's name for people, such as ``LP++``; if empty, ``method`` is used.
        ablation: whether the cell takes no part in verdicts: a variant measured on few datasets, or a changed protocol.
    """

    method: str
    domain: str
    published: float | None = None
    colour: str = ""
    title: str = ""
    ablation: bool = False


Describe = Callable[[Result], Labels]


@dataclass(frozen=True)
class TrackedRun:
    """The content that one run should have.

    Attributes:
        key: identifies the run: an experiment has one finished run for each key.
        kind: see the docstring of the module.
        start, end: times in milliseconds since 1970.
        folder: the folder to attach as artifacts, if any.
        inputs: fingerprint of the results that the run was computed from.
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
        """Fingerprint of the whole content. A run in MLflow that has another fingerprint is out of date."""
        listing = _listing(self.folder) if self.folder else []
        content = [self.name, sorted(self.tags.items()), sorted(self.params.items()), self.metrics, self.end]
        return hashlib.sha256(json.dumps([content, self.inputs, listing]).encode()).hexdigest()[:16]


def _listing(folder: Path) -> list[tuple[str, int]]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return sorted((name, path.stat().st_size) for name, path in files.items() if "/." not in f"/{name}")


def cell_run(result: Result, labels: Labels, grid: str) -> TrackedRun:
    """Return the run of one finished cell."""
    cell = result.cell
    accuracy, zero_shot = result.accuracies
    metrics = {
        "accuracy": rounded(accuracy),
        "accuracy_zero_shot": rounded(zero_shot),
        "gain_over_zero_shot": rounded(accuracy - zero_shot),
        "trainable_parameters": float(result.trainable_parameters),
        "fit_seconds": rounded(result.timings.fit_seconds),
        "eval_seconds": rounded(result.timings.eval_seconds),
        "peak_memory_mib": result.peak_memory_mib,
    }
    if labels.published is not None:
        metrics |= {"accuracy_published": labels.published, "delta_published": rounded(accuracy - labels.published)}
    if len(result.evaluations) > 1 or result.target_evaluation is None:
        metrics |= {f"accuracy/{e.dataset}": e.accuracy for e in result.evaluations}
    metrics |= {
        f"accuracy_own_classes/{e.dataset}": e.accuracy_own_classes
        for e in result.evaluations
        if e.accuracy_own_classes is not None
    }
    if (shifted := result.shifted_accuracy) is not None:
        metrics["accuracy_shifted"] = shifted
    metrics |= {f"detail/{name}": float(value) for name, value in result.details.items() if not isinstance(value, str)}
    curves = [  # "accuracy" is already the name of the finished cell's accuracy
        ("accuracy_by_epoch" if name == "accuracy" else name, float(value), epoch)
        for name, values in sorted(result.curves.items())
        for epoch, value in enumerate(values, start=1)
    ]
    where = {"dataset": cell.dataset.name, "k": str(cell.shots), "seed": str(cell.seed)}
    params = grouping(cell, labels) | where
    for name, value in cell.method.settings:
        params[f"setting_{name}" if name in params else name] = str(value)
    if result.manifest.precision:
        params["precision"] = result.manifest.precision
    params |= {f"detail_{name}": value for name, value in result.details.items() if isinstance(value, str)}
    commit = {"commit": result.manifest.commit} if result.manifest.commit else {}
    end = milliseconds(result.manifest.finished_at)
    return TrackedRun(
        key=cell.id,
        kind="cell",
        name=run_name(cell, labels, cell.dataset.name, cell.shots, f"seed {cell.seed}" if cell.seed else ""),
        tags=_safe_names(tags_of(cell, labels, grid) | where | {"cell": cell.id} | commit),
        params=_safe_names(params),
        metrics=_safe_metrics([*((name, value, 0) for name, value in metrics.items()), *curves]),
        start=end - round(1000 * result.timings.total),
        end=end,
    )


def summary_run(
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
    """Return a run that is computed from the results in ``group``.

    If one of these results is measured again, the run's fingerprint changes, so that ``sync`` writes the run again.
    """
    ends = [milliseconds(result.manifest.finished_at) for result in group]
    cells = sorted(f"{result.cell.id} {result.manifest.finished_at}" for result in group)
    return TrackedRun(
        key=f"{kind}:{'/'.join(key)}",
        kind=kind,
        name=name,
        tags=_safe_names(tags),
        params=_safe_names(params),
        metrics=_safe_metrics(metrics),
        start=min(ends),
        end=max(ends),
        folder=folder,
        inputs=hashlib.sha256("\n".join(cells).encode()).hexdigest(),
    )


def tags_of(cell: Cell, labels: Labels, grid: str) -> dict[str, str]:
    """Return the tags by which people search for runs."""
    tags = {
        "grid": grid,
        "method_title": labels.title or labels.method,
        "domain_title": labels.domain,
        "selects_on_test": str(cell.selects_on_test).lower(),
        "ablation": str(labels.ablation).lower(),
    }
    return grouping(cell, labels) | tags | ({"mlflow.runColor": labels.colour} if labels.colour else {})


def run_name(cell: Cell, labels: Labels, place: str, shots: int = 0, repeats: str = "") -> str:
    """Return the name of a run, such as ``LP++ · glyph-digits · k 4 · seed 1 · few-shot``.

    The method comes first, because MLflow cuts long names. ``shots`` = 0 and empty ``repeats`` are left out. The name
    ends with a warning if the numbers of the run may have been selected on the test set.
    """
    k = f"k {shots}" if shots else ""
    parts = (labels.title or labels.method, place, k, repeats, stored_track(cell.track).title)
    name = " · ".join(filter(None, parts))
    return f"{name} ({SELECTED_ON_TEST})" if cell.selects_on_test else name


def grouping(cell: Cell, labels: Labels) -> dict[str, str]:
    """Return the parameters by which charts group runs."""
    return {
        "track": cell.track,
        "protocol": cell.protocol.name,
        "sources_rule": cell.sources_rule,
        "backbone": cell.backbone.name,
        "domain": cell.domain,
        "method": labels.method,
    }


def rounded(value: float) -> float:
    """Return a number rounded to four decimals, as many as MLflow's tables show."""
    return round(value, 4)


def _safe_name(name: str) -> str:
    """Return the name of a tag, parameter or metric in a form that MLflow accepts.

    Letters, digits, ``_ - . :``, spaces and single ``/`` are kept, and ``_`` replaces all other characters. Only the
    first 250 characters are kept.
    """
    parts = re.sub(r"[^\w\-. :/]", "_", name)[:_LONGEST_NAME].split("/")
    return "/".join(f"_{part[1:]}" if part in ("", ".") or part.startswith("..") else part for part in parts)


def _safe_names(values: Mapping[str, str]) -> dict[str, str]:
    return {_safe_name(name): value for name, value in values.items()}


def _safe_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    """Return the metrics with names that MLflow accepts. Names that would become equal get a checksum at the end."""
    metrics, safe = tuple(metrics), dict[str, str]()
    for short, names in grouped(dict.fromkeys(name for name, _, _ in metrics), _safe_name).items():
        for name in names:
            checksum = hashlib.sha256(name.encode()).hexdigest()[:4]
            safe[name] = short if len(names) == 1 else f"{short[: _LONGEST_NAME - 5]}_{checksum}"
    return tuple((safe[name], value, step) for name, value, step in metrics)


def milliseconds(time: str) -> int:
    """Return an ISO 8601 time as milliseconds since the epoch."""
    return round(1000 * datetime.fromisoformat(time).timestamp())
