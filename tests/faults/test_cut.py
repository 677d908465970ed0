"""A node loses its network while it works: of three hosts with networks of their own, one is cut off.

Takes minutes and needs root: ``BOLT_TEST_HOSTS=1 python -m pytest tests/faults/test_cut.py``.
"""

import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults import soak
from tests.faults.conftest import SECONDS
from tests.helpers.grid_run import SMALL_GRID, SMALL_GRID_CELLS, GridRun, scores
from tests.helpers.hosts import Hosts, missing
from tests.helpers.ray_nodes import HEALTH, ROOT, MultiNodeCluster
from tests.helpers.waiting import TIMEOUT, until

pytestmark = [
    pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing"),
    pytest.mark.skipif("BOLT_TEST_HOSTS" not in os.environ, reason="takes minutes; BOLT_TEST_HOSTS=1 asks for it"),
]
GIVEN_UP_SECONDS = 40.0
"""Longer than the head takes to give up a node that does not answer."""


def test_the_grid_is_finished_without_a_node_that_is_cut_off(tmp_path: Path, expected: dict[str, object]) -> None:
    none = MultiNodeCluster(tmp_path / "none", workers=0)
    grid_run = GridRun(tmp_path / "cut", none, grid=SMALL_GRID, cells=SMALL_GRID_CELLS)
    env = {
        **HEALTH, "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(ROOT),
        "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ray = "ray start --block --disable-usage-stats --include-log-monitor=false --object-store-memory=100000000"
    started: list[subprocess.Popen[str]] = []
    with (
        Hosts(tmp_path / "hosts", share=[tmp_path / "cut", ROOT]) as hosts,
        open(tmp_path / "hosts.txt", "w") as output,
    ):
        head = hosts.add("head")
        for name in ("one", "two"):
            hosts.add(name)
        address = f"{head.address}:6379"

        def node(name: str, arguments: str) -> None:
            here = f"--node-ip-address={hosts.hosts[name].address}"
            started.append(hosts.start(name, f"{ray} {here} {arguments}", env=env, output=output))

        def cells_on(name: str) -> bool:
            return any("ray::_Inner.train" in line for line in hosts.processes(name).values())

        def command() -> subprocess.Popen[str]:
            return hosts.start("head", grid_run.command("--address", address), env=env, output=output)

        try:
            node("head", "--head --port=6379 --num-cpus=0 --include-dashboard=false")
            until(lambda: hosts.run("head", "ray status", env=env, check=False).returncode == 0, SECONDS, 1)
            for name in ("one", "two"):
                node(name, f"--address={address} --num-cpus=1")
            driver = command()
            assert until(lambda: cells_on("two"), SECONDS), (tmp_path / "hosts.txt").read_text()[-2000:]
            hosts.cut("two")
            ping = f"ping -c 1 -W 1 {head.address} || echo away"
            assert hosts.run("two", ping, check=False).stdout.endswith("away\n")
            before = len(scores(grid_run.store))
            time.sleep(GIVEN_UP_SECONDS)
            assert len(scores(grid_run.store)) > before or driver.poll() is not None
            hosts.heal("two")
            node("two", f"--address={address} --num-cpus=1")
            if driver.wait(SECONDS):
                assert command().wait(SECONDS) == 0
            assert soak.check_round(grid_run, expected, targets=["two"]) == []
        finally:
            print((tmp_path / "hosts.txt").read_text()[-3000:])
    for process in started:
        process.wait(TIMEOUT)
