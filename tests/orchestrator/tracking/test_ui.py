"""MLflow's web interface: views, links, and the server on loopback."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import pytest

from orchestrator.report import study_of
from orchestrator.store.results import Result
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.ui import check_port, ui_command
from orchestrator.tracking.views import VIEWS, ui_links
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.orchestrator.tracking.examples import GRID, describe, some_results


def test_the_experiment_brings_its_views_and_links(sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    found = ui_links(sqlite_store[0], GRID, "http://127.0.0.1:5000")
    assert found["every cell"] == (
        f"http://127.0.0.1:5000/#/experiments/{tracker.experiment_id}/runs?viewStateShareKey=cells"
    )
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    assert "tags.kind = 'cell'" in tags["mlflow.sharedViewState.cells"]
    assert ui_links(sqlite_store[0], "unheard of", "http://127.0.0.1:5000") == {
        "experiments": "http://127.0.0.1:5000/#/experiments"
    }


def test_the_server_listens_on_loopback_with_one_worker() -> None:
    command = ui_command(TrackingLocation("sqlite:////x/mlflow.db", "file:///x/artifacts"), 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1"
    assert command[command.index("--workers") + 1] == "1"
    assert command[command.index("--default-artifact-root") + 1] == "file:///x/artifacts"


def test_a_port_that_is_taken_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="is taken"):
            check_port(taken.getsockname()[1])


def with_domains() -> list[Result]:
    """Two methods in two domains."""
    return [
        replace(result, cell=replace(result.cell, domain=domain))
        for domain in ("aerial", "glyphs")
        for result in (samples.result(samples.cell(1, method=method, dataset=domain)) for method in ("bolt", "lora"))
    ]


def test_each_track_and_domain_has_one_link_to_all_its_methods(sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    results = with_domains()
    ablation = samples.result(samples.cell(1, method="atlas", dataset="glyphs"))
    test_time = [replace(result, cell=replace(result.cell, track="tta")) for result in results[:2]]

    def describe_all(result: Result) -> Labels:
        return replace(describe(result), ablation=result is ablation)

    tracker.sync([*test_time, *results, ablation], describe_all)
    found = ui_links(sqlite_store[0], GRID, "http://127.0.0.1:5000")
    panels = list(found)[: -len(VIEWS)]
    assert panels == [
        "few-shot, aerial: 2 methods",
        "few-shot, glyphs: 2 methods",
        "test-time adaptation, aerial: 2 methods",
    ]
    address = found["few-shot, glyphs: 2 methods"]
    assert address.endswith("viewStateShareKey=fewshot-glyphs-tiny-strict&compareRunsMode=CHART")
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    view = json.loads(tags["mlflow.sharedViewState.fewshot-glyphs-tiny-strict"])
    shown = list(tracker._search(view["searchFilter"]))
    assert {run.data.params["method"] for run in shown} == {"bolt", "lora"}
    assert {(run.data.tags["kind"], run.data.params["domain"]) for run in shown} == {("curve", "glyphs")}
    drawn = {chart["metricKey"] for chart in view["compareRunCharts"]}
    assert drawn >= set(shown[0].data.metrics)


def test_views_order_and_filter_by_what_runs_have(tracker: Tracker) -> None:
    results = some_results()
    cells = [result.cell for result in results]
    study = study_of(results=results, planned=cells, label_of=lambda cell: cell.method.name)
    tracker.sync(results, describe, answers=study.answers)
    tags = tracker._client.get_experiment(tracker.experiment_id).tags
    views = {tag: json.loads(value) for tag, value in tags.items() if tag.startswith("mlflow.sharedViewState.")}
    assert len(views) == len(VIEWS) + 1
    for view in views.values():
        runs = list(tracker._search(view["searchFilter"]))
        assert runs
        said = {f"metrics.`{name}`" for name in runs[0].data.metrics}
        said |= {f"params.`{name}`" for name in runs[0].data.params} | {f"tags.`{name}`" for name in runs[0].data.tags}
        missing = set(view["selectedColumns"]) - said
        assert missing <= {"metrics.`delta_published`"}  # of some runs only
        if view["orderByKey"].startswith(("metrics.", "params.")):
            assert view["orderByKey"] in said
