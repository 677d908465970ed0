"""Connecting to Ray and leaving it: local instances, clusters that are not there, and clusters that are lost."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from orchestrator.execution.autoscaler import AutoscalerLimits
from orchestrator.execution.cluster import connect
from orchestrator.util.errors import UserError
from tests.helpers.waiting import TIMEOUT

pytestmark = pytest.mark.ray


def test_a_local_instance_reports_its_resources_and_listens_on_loopback_only(cluster: AutoscalerLimits) -> None:
    import ray

    resources = ray.cluster_resources()
    assert (resources["CPU"], resources["GPU"], cluster) == (2, 2, AutoscalerLimits())
    (node,) = ray.nodes()
    port = node["NodeManagerPort"]
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(OSError):  # one that listens everywhere answers here, too
        socket.create_connection(("127.0.0.2", port), timeout=5).close()


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere"])
def test_joining_a_cluster_that_is_not_there_is_a_user_error(address: str) -> None:
    with pytest.raises(UserError, match="--address"):
        connect(address).__enter__()


def test_workers_get_the_environment_and_the_driver_keeps_its_own_and_its_signal_handlers() -> None:
    script = (
        "import os, signal\n"
        "from orchestrator.execution.cluster import connect\n"
        "from orchestrator.execution.task_graph import run_graph_on_ray\n"
        "from orchestrator.execution.task_graph import GraphTask\n"
        "with connect(None, cpus=1, worker_env={'OMP_NUM_THREADS': '3'}):\n"
        "    events = list(run_graph_on_ray({'ask': GraphTask(os.getenv, ('OMP_NUM_THREADS',))}))\n"
        "    print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)\n"
        "print(events[-1].value, os.getenv('OMP_NUM_THREADS'), os.getenv('PYTHONPATH'))\n"
    )
    environment = {name: value for name, value in os.environ.items() if name not in ("OMP_NUM_THREADS", "PYTHONPATH")}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT, env=environment
    )
    assert done.stdout.split() == ["True", "3", "None", "None"], done.stderr


LOSES_ITS_RAYLET = """
import contextlib, os, sys, tempfile
from pathlib import Path
from orchestrator.execution.cluster import connect
from orchestrator.execution.health import ClusterLost
from orchestrator.core.events import Resources
from orchestrator.core.settings import RunSettings
from tests.helpers import cells as samples

def kill(event):
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            program = (stat.parent / "cmdline").read_bytes().split(b"\\0")[0]
            if parent == os.getpid() and program.endswith(b"/raylet"):
                os.kill(int(stat.parent.name), 9)

with connect(None, cpus=1), tempfile.TemporaryDirectory() as folder:
    from orchestrator.execution.tune.driver import run_cells
    try:
        run_cells([samples.cell()], RunSettings(folder), resources=lambda cell: Resources(), max_attempts=1,
                  on_event=kill, runner="tests.helpers.cells:sleep_long")
    except ClusterLost as error:
        print("lost:", error)
sys.stdout.flush()
os._exit(0)  # as the command line leaves a lost cluster
"""


def test_the_driver_ends_when_its_cluster_dies() -> None:
    done = subprocess.run([sys.executable, "-c", LOSES_ITS_RAYLET], capture_output=True, text=True, timeout=TIMEOUT)
    assert "raylet has ended" in done.stdout, done.stderr


COLLECTS_GARBAGE_WHILE_RAY_ENDS = """
import threading
from orchestrator.execution.cluster import connect
import ray

class Cycle:
    \"\"\"A reference cycle that holds an object reference of Ray, as Tune leaves them.\"\"\"

    def __init__(self, held):
        self.held, self.me = held, self

connection = connect(None, cpus=1)
connection.__enter__()
one = ray.put(1)
cycles = [Cycle(ray.ObjectRef(one.binary())) for _ in range(100_000)]
over = threading.Event()

def work():
    while not over.is_set():
        cycles.pop()
        [[] for _ in range(1000)]  # enough for the collector to run

thread = threading.Thread(target=work)
thread.start()
connection.__exit__(None, None, None)
over.set()
thread.join()
print("closed")
"""


def test_garbage_with_object_references_does_not_end_the_driver_while_ray_shuts_down() -> None:
    """Another thread's work can start the garbage collector at that moment; this has ended a driver before."""
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS_GARBAGE_WHILE_RAY_ENDS], capture_output=True, text=True, timeout=TIMEOUT
    )
    assert (done.returncode, done.stdout) == (0, "closed\n"), done.stderr
