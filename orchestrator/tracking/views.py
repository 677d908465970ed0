"""Prepared views of MLflow's web interface, and the links that open them.

MLflow reads a whole view - columns, filter, order - from an experiment's tag ``mlflow.sharedViewState.<name>`` when
the address says ``viewStateShareKey=<name>``: its own "share" button works so. Every experiment gets such tags. The
keys below are MLflow's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from orchestrator.tracking.client import open_client

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

VIEW_TAG = "mlflow.sharedViewState."

COMPARED_PANELS = 4
"""With more panels than this no comparison is linked: a link names every run, and in MLflow the runs can be chosen."""

_MAX_CURVES = 1000

_COMMON: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "runsHiddenMode": "SHOW_ALL",  # by default MLflow shows the ten latest
}

_CONDITIONS = ("params.`track`", "params.`protocol`", "tags.`selects_on_test`")


def _section(name: str, *, columns: int, height: int) -> dict[str, Any]:
    """A section with ``columns`` charts side by side, ``height`` pixels high."""
    flags = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
    return {"uuid": name, "name": name, "columns": columns, "cardHeight": height, **flags}


def _chart(section: str, metric: str) -> dict[str, Any]:
    """One metric over its steps; MLflow uses the metric's name as the title."""
    return {
        "uuid": metric,
        "type": "LINE",
        "metricSectionId": section,
        "metricKey": metric,
        "selectedMetricKeys": [metric],
        "displayPoints": True,
        "runsCountToCompare": 100,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
        "deleted": False,
        "isGenerated": False,
    }


_MEAN, _DEVIATION = "Accuracy against k (step = k)", "Standard deviation over seeds (step = k), epochs"

_VIEWS: dict[str, dict[str, Any]] = {
    "cells": {
        "searchFilter": "tags.kind = 'cell'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`seed`", "params.`backbone`", *_CONDITIONS),
            *("metrics.`accuracy`", "metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
            *("metrics.`trainable_parameters`", "metrics.`fit_seconds`"),
        ],
    },
    "means": {
        "searchFilter": "tags.kind = 'aggregate'",
        "orderByKey": "metrics.`accuracy_mean`",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`dataset`", "params.`k`", "params.`backbone`", "tags.`accuracy`"),
            *(*_CONDITIONS, "metrics.`accuracy_mean`", "metrics.`accuracy_std`", "metrics.`n`"),
            *("metrics.`gain_over_zero_shot`", "metrics.`delta_published`"),
        ],
    },
    "methods": {
        "searchFilter": "tags.kind = 'cell'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": ["metrics.`accuracy`", "metrics.`gain_over_zero_shot`", "metrics.`fit_seconds`"],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "method"}]},
    },
    "curves": {
        "searchFilter": "tags.kind = 'curve'",
        "orderByKey": "metrics.`accuracy_by_shots`",
        "orderByAsc": False,
        "selectedColumns": [
            *("params.`method`", "params.`domain`", "params.`backbone`", *_CONDITIONS),
            *("metrics.`accuracy_by_shots`", "metrics.`accuracy_by_epoch`"),
        ],
        "compareRunSections": [_section(_MEAN, columns=1, height=480), _section(_DEVIATION, columns=2, height=320)],
        "compareRunCharts": [
            _chart(_MEAN, "accuracy_by_shots"),
            _chart(_DEVIATION, "accuracy_by_shots_std"),
            _chart(_DEVIATION, "accuracy_by_epoch"),
        ],
    },
}

VIEWS = {
    "curves": "accuracy against k, one line per method",
    "means": "mean and sample standard deviation over seeds",
    "methods": "cells grouped by method",
    "cells": "every cell",
}
"""Name of a view -> what it shows."""


def experiment_tags(domains: Iterable[str] = ()) -> dict[str, str]:
    """The tags of an experiment: its kind, its views, and a view of the curves for each of ``domains``."""
    views = dict(_VIEWS)
    for domain in domains:
        domain_filter = f"{views['curves']['searchFilter']} and params.domain = '{domain}'"
        views[f"curves-{domain}"] = {**views["curves"], "searchFilter": domain_filter}
    tags = {f"{VIEW_TAG}{name}": json.dumps({**_COMMON, **view}) for name, view in views.items()}
    return {"mlflow.experimentKind": "custom_model_development", **tags}


def ui_links(uri: str, experiment: str | None, base: str) -> dict[str, str]:
    """Title -> address of what is worth opening in MLflow's web interface.

    These are the views of the experiment, one of the curves for each domain if there are several, and MLflow's
    comparison of all methods for each panel if there are few. Without an experiment, or before it is tracked, it is
    the list of experiments.

    Args:
        uri: of the tracking store.
        experiment: its name.
        base: the address of the web interface.
    """
    client = open_client(uri)
    found = client.get_experiment_by_name(experiment) if experiment else None
    if found is None:
        return {"experiments": f"{base}/#/experiments"}
    links = {title: _view_link(base, found.experiment_id, view) for view, title in VIEWS.items()}
    prefix = f"{VIEW_TAG}curves-"
    domains = sorted(tag.removeprefix(prefix) for tag in found.tags if tag.startswith(prefix))
    if len(domains) > 1:
        for domain in domains:
            links[f"accuracy against k in {domain}"] = _view_link(base, found.experiment_id, f"curves-{domain}")
    panels = _panels(client, found.experiment_id)
    if len(panels) <= COMPARED_PANELS:
        for panel, runs in panels.items():
            if len(runs) > 1:
                links[f"{len(runs)} methods compared, {panel}"] = _compare_link(base, found.experiment_id, runs)
    return links


def _view_link(base: str, experiment_id: str, view: str) -> str:
    mode = "&compareRunsMode=CHART" if view.startswith("curves") else ""
    return f"{base}/#/experiments/{experiment_id}/runs?viewStateShareKey={view}{mode}"


def _compare_link(base: str, experiment_id: str, run_ids: Sequence[str]) -> str:
    runs, experiments = (quote(json.dumps(list(ids), separators=(",", ":"))) for ids in (run_ids, [experiment_id]))
    return f"{base}/#/compare-runs?runs={runs}&experiments={experiments}"


def _panels(client: MlflowClient, experiment_id: str) -> dict[str, list[str]]:
    """Panel (track, protocol, backbone, domain) -> the ids of its methods' curves, the best method first."""
    curves = client.search_runs(
        [experiment_id], "tags.kind = 'curve'", max_results=_MAX_CURVES, order_by=["metrics.accuracy_by_shots DESC"]
    )
    panels: dict[str, list[str]] = defaultdict(list)
    for run in curves:
        params = run.data.params
        panels[" ".join(params[name] for name in ("track", "protocol", "backbone", "domain"))].append(run.info.run_id)
    return dict(sorted(panels.items()))
