"""``ray up`` of the on-premises file from end to end: three hosts, a part of the demo grid, and failures.

    BOLT_TEST_ON_PREMISES=1 python -m pytest -s tests/cluster/test_on_premises.py

Takes about ten minutes on two cores, and needs root and the programs that :func:`tests.helpers.hosts.missing` names.
The hosts are namespaces (``hosts.py``): each has its own processes, network, sshd, ``/tmp`` and home. They share the
machine's disk, and with it its Python.

The file is changed only where a user would fill in values, or where real machines differ:
    addresses, user, the store's folder; two CPUs in all (``--num-cpus``) and small object stores;
    ``pip install``, for lack of a network, becomes a check that the machine's environment imports the copied project.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.store import Store
from tests.helpers.hosts import PATH, Hosts, missing

ASKED = "BOLT_TEST_ON_PREMISES"
PROJECT = Path(__file__).resolve().parents[2]
READY_FILE = PROJECT / "docs" / "cluster" / "on-premises.yaml"
METHODS = "zero_shot,linear_probe,tip_adapter,lp_plus_plus,bolt_pooled,bolt"
WHAT = f"demo-fewshot --only domain=glyphs --only method={METHODS} --set fine_tuning.epochs=1"
GRID = f"python -m orchestrator grid {WHAT}"
FIRST, SECOND = "--only seed=1 --only shots=1,16", "--only seed=2 --only shots=1"
CELLS = 88
MORE_CELLS, ZERO_SHOT_CELLS = 40, 8  # of the second seed; of none
WORKERS = ("one", "two")
DASHBOARD = "http://127.0.0.1:8265"
TIMEOUT_SECONDS = 900.0
RAY_PROCESSES = ("raylet", "gcs_server", "ray::", "default_worker")


@pytest.mark.skipif(ASKED not in os.environ, reason=f"takes minutes and root; {ASKED}=1 asks for it")
def test_up_run_lose_and_down(tmp_path: Path) -> None:
    if why := missing():
        pytest.fail(why)
    store = tmp_path / "store"
    store.mkdir()
    with Hosts(tmp_path / "hosts", share=[PROJECT, store]) as hosts:
        site = Site(hosts, store)
        site.set_up()
        reference = run_on_one_machine(tmp_path / "alone")
        site.ray_up()
        try:
            driver_without_the_token_is_refused(site)
            driver_is_killed(site)
            host_is_lost(site)
            host_is_used_again(site)
            same_as_on_one_machine(site, reference)
            a_failure_names_its_host(site)
        finally:
            site.ray_down()


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


class Site:
    """The hosts ``head``, ``one`` and ``two``, and ``desk``, the user's machine."""

    def __init__(self, hosts: Hosts, store: Path) -> None:
        self.hosts, self.store = hosts, store
        self.file = "~/on-premises.yaml"

    def set_up(self) -> None:
        """Make the hosts, and check that they are separate before a command of Ray runs in one."""
        for name in ("desk", "head", *WORKERS):
            home = self.hosts.add(name).folder / "home"
            environment = home / "bolt-env"
            if not environment.is_symlink():
                environment.symlink_to(sys.prefix)
        for name in self.hosts.hosts:
            seen = self.hosts.run(name, "ps -e -o comm=").stdout.split()
            assert len(seen) < 10, f"{name} sees processes of others: {seen}"
        desk = self.hosts.hosts["desk"].folder / "home"
        (desk / ".ssh").mkdir(exist_ok=True)
        (desk / ".ssh" / "id_ed25519").write_text(self.hosts.key.read_text())
        (desk / ".ssh" / "id_ed25519").chmod(0o600)
        (desk / "on-premises.yaml").write_text(self.filled_in(READY_FILE.read_text()))
        log(f"hosts: {', '.join(f'{host.name} {host.address}' for host in self.hosts.hosts.values())}")

    def filled_in(self, text: str) -> str:
        """Return the file with the values of these hosts."""
        small = "--object-store-memory=100000000"
        for old, new in {
            "192.168.1.10": self.hosts.hosts["head"].address,
            "192.168.1.11": self.hosts.hosts["one"].address,
            "192.168.1.12": self.hosts.hosts["two"].address,
            "ssh_user: bolt": "ssh_user: root",
            "BOLT_STORE=/srv/bolt/store": f"BOLT_STORE={self.store} PYTHONPATH=$HOME/bolt",
            '-m pip install --quiet --disable-pip-version-check -e "$HOME/bolt[cluster]"': "-c 'import ray, boto3'",
            "ray start --head": f"ray start --num-cpus=0 {small} --head",
            "ray start --address": f"ray start --num-cpus=1 {small} --address",
        }.items():
            assert old in text, f"{READY_FILE} has no {old!r}"
            text = text.replace(old, new)
        return text

    def at_desk(self, command: str, *, check: bool = True, timeout: float = TIMEOUT_SECONDS) -> str:
        """Run a user's command in the project's folder; return its output."""
        return self.hosts.run("desk", _from_project(command), env=_USER, check=check, timeout=timeout).stdout

    def at_head(self, command: str, *, check: bool = True) -> str:
        """Run a command on the head, in the environment that the file's setup made; return its output."""
        return self.hosts.run("head", f". ~/.bolt/env.sh; {command} 2>/dev/null", check=check).stdout

    def ray_up(self) -> None:
        self.at_desk("ray get-auth-token --generate")
        began = time.monotonic()
        self.at_desk(f"ray up --yes {self.file}")
        self.wait_for(lambda: self.alive() == {"head", *WORKERS}, "all three hosts are in the cluster")
        log(f"`ray up` took {time.monotonic() - began:.0f} s until all three hosts were there")

    def ray_down(self) -> None:
        self.at_desk(f"ray down --yes {self.file}")
        # `ray down` stops Ray on the head alone; workers end when they have not reached the head for a minute.
        self.wait_for(lambda: not any(map(self.ray_processes, ("head", *WORKERS))), "nothing of Ray is left")
        log("`ray down`: no process of Ray's is left on any host")

    def ray_processes(self, name: str) -> list[str]:
        if not self.hosts.hosts[name].pid:
            return []
        return [line for line in self.hosts.processes(name).values() if any(word in line for word in RAY_PROCESSES)]

    def alive(self) -> set[str]:
        """Return the names of the hosts that are in the cluster."""
        names = {host.address: name for name, host in self.hosts.hosts.items()}
        try:
            nodes = json.loads(self.at_head("ray list nodes --format json"))
        except (RuntimeError, ValueError):
            return set()
        return {names[node["node_ip"]] for node in nodes if node["state"] == "ALIVE"}

    def is_at_a_cell(self, name: str) -> bool:
        return any(line.startswith("ray::") and ".train" in line for line in self.hosts.processes(name).values())

    def cells_by_host(self) -> Counter[str]:
        """Return how many cells each host has finished since this cluster was started, as Ray counts them."""
        names = {host.address: name for name, host in self.hosts.hosts.items()}
        nodes = json.loads(self.at_head("ray list nodes --format json"))
        hosts = {node["node_id"]: names[node["node_ip"]] for node in nodes}
        tasks = json.loads(self.at_head("ray list tasks --format json --limit 10000 --filter state=FINISHED"))
        return Counter(hosts[task["node_id"]] for task in tasks if task["name"].endswith(".train"))

    def wait_for(self, condition: Callable[[], object], description: str, timeout: float = TIMEOUT_SECONDS) -> float:
        """Wait until the condition holds; return the seconds. Raises ``AssertionError`` after the timeout."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert waited < timeout, f"after {waited:.0f} s it is still not true that {description}"
            time.sleep(1)
        return time.monotonic() - began


_USER = {"PATH": f"{sys.prefix}/bin:{PATH}", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0", "COLUMNS": "200"}


def _from_project(command: str) -> str:
    return f"cd {shlex.quote(str(PROJECT))} && {command}"


def driver_without_the_token_is_refused(site: Site) -> None:
    """A driver on another machine is refused without the token and with a wrong one."""
    address = f"{site.hosts.hosts['head'].address}:6379"
    command = f"python -m orchestrator grid smoke --address {address} --store /tmp/elsewhere"
    wrong = "echo 0123456789abcdef0123456789abcdef > ~/.ray/auth_token"
    for secret, here in (("rm ~/.ray/auth_token", "this machine has none"), (wrong, "this machine has another one")):
        site.at_desk(f"cp ~/.ray/auth_token ~/kept; {secret}")
        output = site.at_desk(f"env -u RAY_AUTH_MODE {command}; echo exit $?; mv ~/kept ~/.ray/auth_token")
        error = output[output.index("error: ") :] if "error: " in output else output
        assert f"asks for its token, and {here}" in error, output
        assert "exit 2" in error, output
        assert "InvalidAuthToken" not in output, output
        log(error.strip().replace("\n", "\n        "))


def driver_is_killed(site: Site) -> None:
    """A driver started by ``ray exec`` is killed; the finished cells are kept."""
    with background(site, f"ray exec {site.file} '{GRID} {FIRST} --address auto'") as driver:
        site.wait_for(lambda: len(measured(site.store)) >= CELLS // 8, "an eighth of the cells is done")
        site.wait_for(lambda: all(map(site.is_at_a_cell, WORKERS)), "both workers are at cells")
        for pid, line in site.hosts.processes("head").items():
            if line.startswith("python -m orchestrator grid"):
                os.kill(pid, signal.SIGKILL)
        driver.wait(timeout=60)
    kept = measured(site.store)
    assert CELLS > len(kept) >= CELLS // 8, len(kept)
    log(f"driver killed while both workers were at cells: {len(kept)} results are kept")


def host_is_lost(site: Site) -> None:
    """The same command runs as a job. One host loses its power meanwhile, and the other host finishes the cells."""
    kept = measured(site.store)
    with background(site, f"ray dashboard {site.file}"):
        answer = f'curl --silent --header "Authorization: Bearer $(cat ~/.ray/auth_token)" {DASHBOARD}/api/version'
        site.wait_for(lambda: "ray_version" in site.at_desk(answer, check=False), "the dashboard's port is forwarded")
        submit = f"ray job submit --address {DASHBOARD} --submission-id grid --no-wait"
        output = site.at_desk(f"{submit} -- {GRID} {FIRST} --address auto")
        assert "submitted successfully" in output, output
        site.wait_for(lambda: len(measured(site.store)) > len(kept), "the job goes on")
        site.wait_for(lambda: site.is_at_a_cell("one"), "a cell is under way on the host that will be lost")
        site.hosts.kill("one")
        at_loss = len(measured(site.store))
        assert at_loss < CELLS, at_loss
        status = f"ray job status --address {DASHBOARD} grid"
        site.wait_for(lambda: "Job 'grid' succeeded" in site.at_desk(status), "the job has succeeded")
    now = measured(site.store)
    assert len(now) == CELLS
    assert {cell: now[cell] for cell in kept} == kept
    by_host = site.cells_by_host()
    assert all(by_host[name] for name in WORKERS), by_host
    log(f"host one lost at {at_loss} results; the job has succeeded; cells by host: {dict(by_host)}")


def host_is_used_again(site: Site) -> None:
    """When the host is back, the head's autoscaler starts Ray on it, and it runs cells."""
    site.wait_for(lambda: "one" not in site.alive(), "the lost host is missed")
    before = site.cells_by_host()
    site.hosts.add("one")
    took = site.wait_for(lambda: "one" in site.alive(), "the lost host is back in the cluster")
    output = site.at_desk(f"ray exec {site.file} 'ray job submit -- {GRID} {SECOND} --address auto'")
    gained = site.cells_by_host() - before
    assert all(gained[name] for name in WORKERS), (gained, output)
    log(f"host one was back {took:.0f} s after it had its power again; cells by host since: {dict(gained)}")


def same_as_on_one_machine(site: Site, reference: dict[str, object]) -> None:
    """The results are complete and bit-equal to those of one machine; the same command finds nothing to do."""
    assert measured(site.store) == reference
    output = site.at_desk(f"ray exec {site.file} '{GRID} {SECOND} --address auto'")
    cells = MORE_CELLS + ZERO_SHOT_CELLS
    assert f"{cells} cells: {cells} done, 0 to do, 0 failed" in output, output
    tracked = re.search(r"MLflow: 0 runs added, (\d+) unchanged, 0 removed", output)
    assert tracked, output
    assert int(tracked[1]) >= cells, output
    log(f"{len(reference)} results, accuracies and counts per class bit-equal to those of one machine")


def a_failure_names_its_host(site: Site) -> None:
    """The log of a failed task names the host and a file that exists on it."""
    output = site.at_head(f"python -c {shlex.quote(FAILING)}").split()
    host, _, path = output[-1].partition(":")
    assert host in WORKERS, output
    assert site.hosts.run(host, ["test", "-f", path], check=False).returncode == 0, output
    log(f"the log of a failed task is {output[-1]}")


FAILING = """
import os
from orchestrator.execution.cluster import connect
from orchestrator.execution.task_graph import GraphTask, run_graph_on_ray
with connect("auto"):
    *_, end = run_graph_on_ray({"task": GraphTask(os.stat, ("/not/there",), frozenset(), cpus=1)})
print(end.kind, end.log)
"""


def run_on_one_machine(store: Path) -> dict[str, object]:
    """Run the same cells in one process, without Ray; return their evaluations."""
    began = time.monotonic()
    for part in (FIRST, SECOND):
        command = [sys.executable, *f"{GRID} {part} --local".split()[1:], "--store", str(store)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    found = measured(store)
    assert len(found) == CELLS + MORE_CELLS, done.stdout
    log(f"on one machine: {len(found)} cells in {time.monotonic() - began:.0f} s")
    return found


def measured(store: Path) -> dict[str, object]:
    """Return, by cell id, the evaluations: accuracies, and the counts per class that give them."""
    here = Store(str(store))
    return {cell: here.read_result(cell).evaluations for cell in here.result_ids()}


@contextlib.contextmanager
def background(site: Site, command: str) -> Iterator[subprocess.Popen[str]]:
    """Run a user's command during the block; then end it and all that it has started on the desk."""
    log = site.hosts.folder / "background.log"
    with log.open("a") as output:
        running = site.hosts.start("desk", _from_project(command), env=_USER, output=output)
        try:
            yield running
        finally:
            for pid, line in site.hosts.processes("desk").items():
                if "ray exec" in line or "ray dashboard" in line or line.startswith("ssh "):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGTERM)
            running.wait(timeout=60)
