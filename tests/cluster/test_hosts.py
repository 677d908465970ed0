"""The hosts of ``tests/helpers/hosts.py`` are separate from one another and from this machine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.hosts import Hosts, missing
from tests.helpers.waiting import until

pytestmark = [pytest.mark.server, pytest.mark.skipif(bool(missing()), reason=missing() or "nothing is missing")]
REACH = "timeout 2 bash -c 'exec 3<>/dev/tcp/two/22 && head -c 4 <&3'"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    folder = tmp_path_factory.mktemp("hosts")
    (folder / "store").mkdir()
    with Hosts(folder / "hosts", share=[folder / "store"]) as made:
        made.add("one")
        made.add("two")
        yield made


def test_a_host_sees_its_own_processes_and_folders_only(hosts: Hosts) -> None:
    seen = hosts.run("one", "ps -e -o pid=,comm=").stdout.split("\n")
    assert len(seen) < 10
    assert seen[0].split() == ["1", "bash"]
    assert hosts.run("one", "hostname").stdout == "one\n"
    hosts.run("one", "touch /tmp/mine ~/mine /dev/shm/mine")
    assert hosts.run("two", "ls /tmp/mine ~/mine /dev/shm/mine", check=False).stdout.count("cannot access") == 3
    assert not Path("/tmp/mine").exists()


def test_a_host_that_is_cut_off_is_unreachable_until_it_is_connected_again(hosts: Hosts) -> None:
    assert hosts.run("one", REACH).stdout == "SSH-"
    hosts.cut("two")
    assert hosts.run("one", REACH, check=False).returncode == 124
    hosts.heal("two")
    assert hosts.run("one", REACH).stdout == "SSH-"


def test_a_killed_host_has_no_process_and_keeps_its_disk(hosts: Hosts, tmp_path: Path) -> None:
    hosts.run("two", "echo kept > ~/on-disk")
    with (tmp_path / "output").open("w") as output:
        asleep = hosts.start("two", "sleep 1000", output=output)
        pids = list(hosts.processes("two"))
        hosts.kill("two")
        assert asleep.wait(timeout=20) != 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert hosts.run("one", REACH, check=False).returncode != 0
    hosts.add("two")
    assert hosts.run("two", "cat ~/on-disk").stdout == "kept\n"
    assert hosts.run("one", REACH).stdout == "SSH-"


def test_the_hosts_end_with_the_process_that_made_them(tmp_path: Path) -> None:
    script = f"""
import os, signal
from pathlib import Path
from tests.helpers.hosts import Hosts
hosts = Hosts(Path({str(tmp_path)!r})).__enter__()
hosts.add("one")
print(os.readlink(f"/proc/{{hosts.hosts['one'].pid}}/ns/pid"), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    made = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False)
    space = made.stdout.strip()
    assert space.startswith("pid:["), made.stderr
    assert until(lambda: space not in _spaces(), seconds=10), "processes of the host are left"


def _spaces() -> set[str]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.add(os.readlink(entry / "ns" / "pid"))
        except OSError:
            continue
    return found
