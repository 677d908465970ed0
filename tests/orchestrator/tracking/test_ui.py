"""MLflow's web interface: links to searches, and the server on loopback."""

import socket
from dataclasses import replace
from urllib.parse import parse_qsl

import pytest

from orchestrator.report import GridResults
from orchestrator.store.results import Result
from orchestrator.tracking.location import TrackingLocation
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import Tracker
from orchestrator.tracking.ui import check_port, ui_command, ui_links
from orchestrator.util.errors import UserError
from tests.helpers import cells as samples
from tests.orchestrator.tracking.examples import GRID, describe


def test_the_server_listens_on_loopback_with_one_worker_where_the_port_is_free() -> None:
    command = ui_command(TrackingLocation("sqlite:////x/mlflow.db", "file:///x/artifacts"), 5001)
    options = {"--host": "127.0.0.1", "--workers": "1", "--default-artifact-root": "file:///x/artifacts"}
    assert {option: command[command.index(option) + 1] for option in options} == options
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(UserError, match="is taken"):
        check_port(taken.getsockname()[1])


def test_links_search_what_runs_have(sqlite_store: tuple[str, str], tracker: Tracker) -> None:
    base = "http://127.0.0.1:5000"
    assert ui_links(sqlite_store[0], "unheard of", base) == {"experiments": f"{base}/#/experiments"}
    results = [
        samples.result(replace(samples.cell(1, method=method, dataset=domain), domain=domain))
        for domain in ("aerial", "glyphs")
        for method in ("bolt", "lora")
    ]
    ablation = samples.result(samples.cell(1, method="atlas", dataset="glyphs"))
    results += [*(replace(result, cell=replace(result.cell, track="tta")) for result in results[:2]), ablation]

    def describe_all(result: Result) -> Labels:
        return replace(describe(result), ablation=result is ablation)

    cells = [one.cell for one in results]
    arranged = GridResults(results=results, planned=cells, label_of=lambda cell: cell.method.name)
    tracker.sync(results, describe_all, verdicts=arranged.verdicts)
    links = ui_links(sqlite_store[0], GRID, base)
    titles = [title for title in links if "2 methods" in title]
    places = [title.split(", ")[:2] for title in titles]
    assert places == [["fewshot", "aerial"], ["fewshot", "glyphs"], ["tta", "aerial"]]
    for title, link in links.items():
        assert link.startswith(f"{base}/#/experiments/{tracker.experiment_id}/runs?")
        query = dict(parse_qsl(link.partition("?")[2]))
        runs = list(tracker._search(query["searchFilter"]))
        assert runs
        order = query["orderByKey"].removeprefix("metrics.").strip("`")
        assert order == "attributes.start_time" or order in runs[0].data.metrics
        if title in titles:
            assert {run.data.params["method"] for run in runs} == {"bolt", "lora"}
            assert query["compareRunsMode"] == "CHART"
