"""The autoscaler's limits, and a node that the autoscaler starts because a task requests a GPU."""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from orchestrator.core.events import Resources
from orchestrator.execution.join import limits_from_config, read_autoscaler_limits
from tests.helpers.waiting import TIMEOUT, wait_for

PROJECT = Path(__file__).resolve().parents[3]
HEAD_ID = "f" * 56
"""The id that Ray's provider of simulated nodes gives the head."""
DRIVER = """
import json, os, sys
from dataclasses import astuple
from orchestrator.catalog import load_catalog
from orchestrator.execution.cluster import connect
from orchestrator.execution.task_graph import GraphTask, run_graph_on_ray
from orchestrator.execution.tune.capacity import cluster_capacity, cluster_size
from orchestrator.planning.packing import Packing
with connect(sys.argv[1]) as limits:
    capacity = cluster_capacity(limits, Packing(load_catalog()), device=None)
    before = cluster_size().gpus, astuple(capacity())
    (*_, end) = run_graph_on_ray({"task": GraphTask(os.getpid, (), frozenset(), cpus=1, gpus=0.5)})
    after = cluster_size().gpus, astuple(capacity())
print(json.dumps([*before, end.kind, *after]))
"""


def test_the_largest_nodes_count_first() -> None:
    sizes = {"head": (1, 64, 8), "small": (2, 8, 1), "wide": (8, 4, 4), "none": (0, 96, 8)}
    node_types = {
        name: {"max_workers": count, "resources": {"CPU": cpus, "GPU": gpus}}
        for name, (count, cpus, gpus) in sizes.items()
    }
    config = {"max_workers": 3, "head_node_type": "head", "available_node_types": node_types}
    assert limits_from_config(config) == Resources(cpus=20, gpus=12)


def test_limits_are_read_from_the_autoscalers_configuration() -> None:
    configuration = yaml.safe_load((PROJECT / "cluster.yaml").read_text())
    assert limits_from_config(configuration) == Resources(0, 0)  # `ray up` fills in the sizes
    configuration["available_node_types"]["gpu"]["resources"] = {"CPU": 4, "GPU": 1, "memory": 1}
    assert limits_from_config(configuration) == Resources(cpus=32, gpus=8)
    assert read_autoscaler_limits("127.0.0.1:1") == Resources(0, 0)  # without an autoscaler no node can start


@pytest.fixture
def scaling_cluster() -> Iterator[tuple[str, dict[str, str]]]:
    """A head without CPUs, and an autoscaler that can start three nodes of two CPUs and a GPU, all on this machine."""
    from ray.autoscaler._private.util import prepare_config

    with tempfile.TemporaryDirectory(prefix="bolt-", ignore_cleanup_errors=True) as name:
        with socket.socket() as probe, socket.socket() as another:
            for free in (probe, another):
                free.bind(("127.0.0.1", 0))
            address, client_port = f"127.0.0.1:{probe.getsockname()[1]}", another.getsockname()[1]
        folder = Path(name)
        node_types = {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "gpu": {"resources": {"CPU": 2, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 3},
        }
        # Ray's own provider of simulated nodes. Under its own name it needs a file that Ray's package lacks.
        provider = {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "launch_multiple": True,
            "head_node_id": HEAD_ID,
            "gcs_address": address,
            "disable_node_updaters": True,
        }
        configuration = prepare_config(yaml.safe_load((PROJECT / "cluster.yaml").read_text()))
        configuration |= {"provider": provider, "available_node_types": node_types}
        configuration["head_node_type"] = "ray.head.default"
        (folder / "cluster.yaml").write_text(yaml.safe_dump(configuration))
        environment = {
            **os.environ,
            "HOME": name,
            "RAY_AUTH_MODE": "disabled",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # or the loopback address becomes that of a network card
            "PYTHONPATH": str(PROJECT),
        }
        simulated = {
            "AUTOSCALER_UPDATE_INTERVAL_S": "1",
            "RAY_FAKE_CLUSTER": "1",
            "RAY_enable_autoscaler_v2": "1",
            "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
            "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
        }
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=0"]
        command += [f"--port={address.rpartition(':')[2]}", "--node-ip-address=127.0.0.1", "--include-dashboard=false"]
        command += [f"--ray-client-server-port={client_port}", "--object-store-memory=80000000"]
        command += [f"--temp-dir={folder / 'ray'}", f"--autoscaling-config={folder / 'cluster.yaml'}"]
        with (folder / "head.log").open("w") as log:
            head = subprocess.Popen(command, env=environment | simulated, stdout=log, stderr=log)
        try:
            yield address, environment
        finally:
            for process in [*psutil.Process(head.pid).children(recursive=True), head]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            head.wait()


@pytest.mark.ray
def test_a_cluster_without_a_gpu_starts_a_node_with_one(scaling_cluster: tuple[str, dict[str, str]]) -> None:
    address, environment = scaling_cluster
    host, port = address.split(":")

    def answers() -> bool:
        with suppress(ConnectionRefusedError):
            socket.create_connection((host, int(port))).close()
            return True
        return False

    wait_for(answers, pause=0.2)
    command = [sys.executable, "-c", DRIVER, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [0, [6, 3], "finished", 1, [6, 3]]
