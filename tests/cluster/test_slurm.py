"""``docs/cluster/slurm.sbatch`` on a SLURM of this machine: two nodes, a signal before the time limit, a requeue.

It runs where Debian's slurmctld, slurmd, slurm-client and munge are installed.
"""

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from getpass import getuser
from pathlib import Path

import pytest

from tests.conftest import GiveDatabase
from tests.helpers.ray_nodes import free_port
from tests.helpers.waiting import until, wait_for

PROJECT = Path(__file__).parents[2]
SCRIPT = PROJECT / "docs" / "cluster" / "slurm.sbatch"
NEEDED = ("munged", "slurmctld", "slurmd", "sbatch")
installed = pytest.mark.skipif(
    not all(shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") for program in NEEDED),
    reason="needs Debian's munge, slurmctld, slurmd and slurm-client",
)


def test_the_script_is_one_of_bash() -> None:
    subprocess.run(["bash", "-n", SCRIPT], check=True)
    assert SCRIPT.read_text().startswith("#!/usr/bin/env bash\n")


class Slurm:
    """A SLURM of two nodes with one processor each, all processes on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder, folder / "job.log"
        self.environment = {
            **os.environ, "PATH": f"{os.environ['PATH']}:/usr/sbin", "SLURM_CONF": str(folder / "slurm.conf"),
            "BOLT_PYTHON": sys.executable, "BOLT_STORE": str(folder / "store"), "PYTHONPATH": str(PROJECT),
        }  # fmt: skip
        (folder / "munge").mkdir(mode=0o700)
        key = folder / "munge" / "key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        nodes = "\n".join(
            f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1 State=UNKNOWN"
            for number in (1, 2)
        )
        # The script takes Ray's port from the number of its job, and tests may run side by side.
        (folder / "slurm.conf").write_text(
            f"""ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={free_port()}
FirstJobId={free_port()}
SlurmUser={getuser()}
SlurmdUser={getuser()}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
KillWait=5
SchedulerParameters=sched_interval=1,bf_interval=1
{nodes}
PartitionName=all Nodes=n[1-2] Default=YES State=UP
"""
        )

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.folder / "daemons.log").open("ab") as log:
            return subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)

    def ask(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, cwd=self.folder, check=True
        )
        return done.stdout.strip()

    def nodes_are_idle(self) -> bool:
        done = subprocess.run(["sinfo", "-h", "-o", "%t %D"], env=self.environment, capture_output=True, text=True)
        return done.stdout.strip() == "idle 2"

    def submit(self, *grid: str) -> str:
        options = ["--parsable", "--cpus-per-task=1", "--time=10", f"--output={self.log}"]
        return self.ask("sbatch", *options, str(SCRIPT), *grid)

    def state(self, job: str) -> str:
        shown = self.ask("scontrol", "--oneliner", "show", "job", job)
        return shown.partition("JobState=")[2].partition(" ")[0]

    def wait_for_the_end(self, job: str, state: str) -> None:
        """Wait until ``job`` ends in ``state``, 45 s on two quiet cores; raise with the logs if it ends otherwise."""
        ended = until(lambda: self.state(job) in {"COMPLETED", "FAILED", state}, seconds=600, pause=0.5)
        logs = [path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log"))]
        assert ended, "\n".join([self.ask("scontrol", "show", "job", job), *logs])
        assert self.state(job) == state, "\n".join(logs)

    @property
    def results(self) -> dict[str, int]:
        """The time at which each finished cell was written."""
        return {path.name: path.stat().st_mtime_ns for path in (self.folder / "store" / "results").glob("*.json")}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory, give_database: GiveDatabase) -> Iterator[Slurm]:
    folder = tmp_path_factory.mktemp("slurm")
    give_database(folder / "store" / "mlflow" / "mlflow.db")
    own, munge = Slurm(folder), folder / "munge"
    with ExitStack() as stack:
        for command in (
            ["munged", "--foreground", "--force", f"--socket={munge}/socket", f"--key-file={munge}/key",
             f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-N", "n1"],
            ["slurmd", "-D", "-N", "n2"],
        ):  # fmt: skip
            process = own.start(*command)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_for((munge / "socket").exists)
        wait_for(own.nodes_are_idle, seconds=60, pause=0.2)
        yield own


@installed
@pytest.mark.ray
@pytest.mark.e2e
def test_a_job_that_is_told_to_end_queues_again_and_loses_nothing(slurm: Slurm) -> None:
    job = slurm.submit("smoke", "--only", "method=zero_shot,linear_probe,tip_adapter")
    wait_for(lambda: len(slurm.results) >= 2, seconds=300)
    slurm.ask("scancel", "--signal=TERM", "--batch", job)  # as before the time limit: to the batch script alone
    wait_for(lambda: slurm.state(job) == "PENDING", seconds=60, pause=0.2)
    finished = slurm.results
    assert 2 <= len(finished) < 9
    # SLURM itself waits two minutes. A start within the second of the end is refused: "Job already killed".
    wait_for(slurm.nodes_are_idle, seconds=60, pause=0.2)
    slurm.ask("scontrol", "update", f"JobId={job}", "StartTime=now+2")
    slurm.wait_for_the_end(job, "COMPLETED")
    text = slurm.log.read_text()
    assert f"9 cells: {len(finished)} done, {9 - len(finished)} to do, 0 failed" in text
    assert f"{9 - len(finished)} trials started" in text
    assert len(slurm.results) == 9
    assert finished.items() <= slurm.results.items()  # none ran twice
    assert slurm.ask("squeue", "-h") == ""


@installed
@pytest.mark.ray
@pytest.mark.e2e
def test_a_job_with_a_wrong_argument_ends_with_its_message(slurm: Slurm) -> None:
    job = slurm.submit("smok")
    slurm.wait_for_the_end(job, "FAILED")
    assert "did you mean" in slurm.log.read_text()
