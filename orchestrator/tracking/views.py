"""Prepared views of MLflow's web interface, and the links that open them.

MLflow reads a whole view - columns, filter, order - from an experiment's tag ``mlflow.sharedViewState.<name>`` when
the address says ``viewStateShareKey=<name>``: its own "share" button works so. Every experiment gets such tags. The
keys below are MLflow's.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.tracking.client import open_client
from orchestrator.tracking.runs import TrackedRun
from orchestrator.tracks import TRACKS, stored_track
from orchestrator.util.identity import slug
from orchestrator.util.units import pluralize

VIEW_TAG = "mlflow.sharedViewState."

_MAX_CURVES = 1000

CURVES = "tags.kind = 'curve' and tags.ablation = 'false'"
"""Filter of the runs that panels show: one for each method, without ablations."""

_COMMON: dict[str, Any] = {
    "startTime": "ALL",
    "lifecycleFilter": "Active",
    "runsHiddenMode": "SHOW_ALL",  # by default MLflow shows the ten latest
}


def _columns(kind: str, *names: str) -> list[str]:
    """Columns of a table; ``kind`` is ``metrics``, ``params`` or ``tags``."""
    return [f"{kind}.`{name}`" for name in names]


def _section(name: str, *, columns: int, height: int) -> dict[str, Any]:
    """A section with ``columns`` charts side by side, ``height`` pixels high."""
    flags = {"display": True, "isReordered": False, "deleted": False, "isGenerated": False}
    return {"uuid": name, "name": name, "columns": columns, "cardHeight": height, **flags}


def _bar_chart(section: str, metric: str) -> dict[str, Any]:
    """One bar for each run; MLflow uses the metric's name as the title."""
    chart = {"uuid": metric, "type": "BAR", "metricSectionId": section, "metricKey": metric}
    return {**chart, "runsCountToCompare": 100, "deleted": False, "isGenerated": False}


def _line_chart(section: str, metric: str) -> dict[str, Any]:
    """One metric over its steps."""
    return {
        **_bar_chart(section, metric),
        "type": "LINE",
        "selectedMetricKeys": [metric],
        "displayPoints": True,
        "xAxisKey": "step",
        "xAxisScaleType": "linear",
        "scaleType": "linear",
        "lineSmoothness": 0,
        "range": {},
        "useGlobalXaxisKey": True,
        "useGlobalLineSmoothing": True,
    }


# MLflow sorts columns: metrics, parameters, tags, and each kind by name. It cuts what does not fit, so every view has
# few columns; `experiment_tags` adds those that only some grids need.
_VIEWS: dict[str, dict[str, Any]] = {
    "best": {
        "searchFilter": "tags.kind = 'mean' and tags.in_best_set = 'yes' and tags.ablation = 'false'",
        "orderByKey": "metrics.`accuracy_mean`",
        "orderByAsc": False,
        "selectedColumns": _columns("metrics", "accuracy_mean", "n")
        + _columns("params", "domain", "k", "method", "track")
        + _columns("tags", "recommended"),
        "groupBy": {"aggregateFunction": "max", "groupByKeys": [{"mode": "param", "groupByData": "place"}]},
    },
    "means": {
        "searchFilter": "tags.kind = 'aggregate'",
        "orderByKey": "params.`dataset`",
        "orderByAsc": True,
        "selectedColumns": _columns("metrics", "accuracy_mean", "accuracy_std", "n")
        + _columns("params", "dataset", "k", "method", "track"),
    },
    "cells": {
        "searchFilter": "tags.kind = 'cell'",
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "selectedColumns": _columns("metrics", "accuracy", "gain_over_zero_shot")
        + _columns("params", "dataset", "k", "method", "seed", "track"),
    },
}

VIEWS = {
    "best": "the methods that may be the best, for each track, domain and k",
    "means": "means over seeds, for each dataset",
    "cells": "every cell",
}
"""Name of a view -> what it shows, without the views of panels."""


@dataclass(frozen=True)
class Panel:
    """One track, protocol, backbone and domain. Its methods are compared with one another."""

    track: str
    protocol: str
    backbone: str
    domain: str

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Panel:
        """The panel of a run with these parameters."""
        return cls(params["track"], params["protocol"], params["backbone"], params["domain"])

    @property
    def view(self) -> str:
        """The name of the panel's view."""
        return slug("-".join((self.track, self.domain, self.backbone, self.protocol)))

    @property
    def order(self) -> tuple[int, str, str, str]:
        """Sorts panels by track, in the order of the tracks, and then by name."""
        tracks = [*TRACKS, self.track]  # a track that a later version has comes last
        return tracks.index(self.track), self.protocol, self.backbone, self.domain

    def state(self, shots: Iterable[int]) -> dict[str, Any]:
        """The view of the panel: its methods by accuracy, as a table, lines over k and bars for each k."""
        conditions = [f"params.{name} = '{value}'" for name, value in asdict(self).items()]
        at_k = [f"mean_at_k/{k:02d}" for k in sorted(shots)]
        lines, bars, deviation = "Accuracy against k (step = k)", "Accuracy at each k", "Standard deviation, epochs"
        return {
            "searchFilter": " and ".join([CURVES, *conditions]),
            "orderByKey": "metrics.`accuracy_by_shots`",
            "orderByAsc": False,
            "selectedColumns": _columns("metrics", *at_k) + _columns("tags", "in_best_set", "recommended"),
            "compareRunSections": [
                _section(lines, columns=1, height=480),
                _section(bars, columns=min(3, len(at_k)), height=360),
                _section(deviation, columns=2, height=320),
            ],
            "compareRunCharts": [
                _line_chart(lines, "accuracy_by_shots"),
                *(_bar_chart(bars, name) for name in at_k),
                _line_chart(deviation, "accuracy_by_shots_std"),
                _line_chart(deviation, "accuracy_by_epoch"),
            ],
        }


def panels_of(runs: Iterable[TrackedRun]) -> dict[Panel, set[int]]:
    """The panels of tracked runs, without those of ablations alone, with the k at which methods were measured."""
    found: dict[Panel, set[int]] = defaultdict(set)
    for run in runs:
        if run.kind == "curve" and run.tags["ablation"] == "false":
            shots = {step for name, _, step in run.metrics if name == "accuracy_by_shots"}
            found[Panel.of(run.params)] |= shots
    return found


def experiment_tags(panels: Mapping[Panel, Iterable[int]] | None = None) -> dict[str, str]:
    """The tags of an experiment: its kind, its views, and a view for each of its panels with the panel's k."""
    panels = panels or {}
    several = [name for name in ("protocol", "backbone") if len({getattr(panel, name) for panel in panels}) > 1]
    added = _columns("params", *several)
    views = {name: {**view, "selectedColumns": view["selectedColumns"] + added} for name, view in _VIEWS.items()}
    views |= {panel.view: panel.state(shots) for panel, shots in panels.items()}
    tags = {f"{VIEW_TAG}{name}": json.dumps({**_COMMON, **view}) for name, view in views.items()}
    return {"mlflow.experimentKind": "custom_model_development", **tags}


def ui_links(uri: str, experiment: str, base: str) -> dict[str, str]:
    """Title -> address of what is worth opening in MLflow's web interface.

    These are the comparison of all methods for each panel, and the views of the experiment. Before the experiment is
    tracked, it is the list of experiments. ``base`` is the address of the web interface.
    """
    client = open_client(uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return {"experiments": f"{base}/#/experiments"}
    curves = client.search_runs([found.experiment_id], CURVES, max_results=_MAX_CURVES)
    panels = [Panel.of(run.data.params) for run in curves]
    start = f"{base}/#/experiments/{found.experiment_id}/runs?viewStateShareKey="
    links = {}
    for panel in sorted(set(panels), key=lambda panel: panel.order):
        title = f"{_title(panel, panels)}: {pluralize(panels.count(panel), 'method')}"
        links[title] = f"{start}{panel.view}&compareRunsMode=CHART"
    return links | {title: f"{start}{view}" for view, title in VIEWS.items()}


def _title(panel: Panel, panels: Iterable[Panel]) -> str:
    """The track and the domain; the backbone and the protocol where there are several."""
    parts = [stored_track(panel.track).title, panel.domain]
    parts += [panel.backbone] * (len({one.backbone for one in panels}) > 1)
    parts += [panel.protocol] * (len({one.protocol for one in panels}) > 1)
    return ", ".join(parts)
