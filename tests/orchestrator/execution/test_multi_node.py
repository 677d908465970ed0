"""Cells on a cluster of several nodes: nodes that join, and nodes that are lost, while cells run."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.helpers import cells as samples
from tests.helpers.ray_nodes import MultiNodeCluster, short_cluster
from tests.helpers.waiting import TIMEOUT, until

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MultiNodeCluster]:
    """A cluster of one node, beside the head. The last test adds another one."""
    with short_cluster(tmp_path_factory.mktemp("ray"), workers=1) as started:
        yield started


LOSES_ITS_NODE = """
import sys
from orchestrator.execution.cluster import connect
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

def show(event):
    print(event.kind, event.attempt, event.retryable, event.recorded)

folder, losses = sys.argv[1:]
with connect("auto"):  # finds the cluster and its token
    from orchestrator.execution.tune import callback
    from orchestrator.execution.tune.driver import run_cells
    callback.NODE_LOSSES = int(losses)
    run_cells([samples.cell()], RunSettings(folder), request=lambda cell: Resources(), max_attempts=1, on_event=show,
              runner="tests.helpers.cells:sleep_long")
"""


def has_lines(path: Path, count: int) -> bool:
    return path.exists() and len(path.read_text().splitlines()) == count


def test_a_cell_that_loses_its_node_again_and_again_fails_in_the_end(tmp_path: Path, nodes: MultiNodeCluster) -> None:
    """A lost node is not counted as an attempt. A cell that brings its node down must not be run for ever."""
    notes, losses = tmp_path / samples.cell().id, 2
    environment = nodes.driver_environment | {"RAY_ADDRESS": nodes.address}
    environment.pop("RAY_AUTH_MODE")
    driver = subprocess.Popen(
        [sys.executable, "-c", LOSES_ITS_NODE, str(tmp_path), str(losses)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        for begun in range(1, losses + 1):
            assert until(partial(has_lines, notes, begun))
            nodes.nodes[0].kill()
            if begun < losses:
                nodes.restart_dead_nodes()
        output, _ = driver.communicate(timeout=TIMEOUT)
    finally:
        driver.kill()
        driver.wait()
    assert output.splitlines() == ["started 1 False True", "started 2 False True", "failed 2 True False"]


RUNS_UNTIL_TWO_WORKERS_WORK = """
import sys
from collections import Counter
from pathlib import Path
from orchestrator.catalog import load_catalog
from orchestrator.execution.cluster import connect
from orchestrator.core.events import Resources
from orchestrator.execution.tune.driver import run_cells
from orchestrator.execution.tune.capacity import cluster_capacity, cluster_size
from orchestrator.planning.packing import Packing
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples
from tests.helpers.waiting import until

address, folder = sys.argv[1:]
done = Counter()

def stop_when_enough(event):
    if event.kind == "started":
        Path(folder, "begun").touch()
    if event.kind == "finished":
        done[Path(folder, event.cell.id).read_text().split()[1]] += 1
    if len([process for process, cells in done.items() if cells >= 3]) == 2:
        raise KeyboardInterrupt

with connect(address) as limits:
    assert until(lambda: cluster_size().cpus == 1)  # a node that was killed counts until Ray has noticed its end
    packing = Packing(load_catalog())
    capacity = cluster_capacity(limits, packing, device=None)
    try:
        run_cells([samples.cell(number) for number in range(400)], RunSettings(folder), max_attempts=2,
                  request=lambda cell: packing.request(cell, threads=1), capacity=capacity, on_event=stop_when_enough,
                  runner="tests.helpers.cells:nap")
    except KeyboardInterrupt:
        pass
print(len(done))
"""


def test_a_node_that_joins_while_cells_run_gets_cells(tmp_path: Path, nodes: MultiNodeCluster) -> None:
    nodes.restart_dead_nodes()
    nodes.wait()
    driver = subprocess.Popen(
        [sys.executable, "-c", RUNS_UNTIL_TWO_WORKERS_WORK, nodes.address, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=nodes.driver_environment,
    )
    try:
        assert until((tmp_path / "begun").exists)
        nodes.add_node()
        output, _ = driver.communicate(timeout=TIMEOUT)
    finally:
        driver.kill()
        driver.wait()
    assert output.split() == ["2"]
