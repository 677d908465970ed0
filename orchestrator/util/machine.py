"""Hardware of this machine: the usable processors and memory, the memory in use, and the GPUs."""

import os
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from orchestrator.util.units import human_bytes

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")

_SMI_FIELDS = "index,name,utilization.gpu,memory.used,memory.total"
_SMI_SECONDS = 5.0


def usable_processors() -> int:
    """Return the number of processors that this process may use: a batch system can grant fewer than exist."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Memory:
    """Memory in use and in total, in bytes.

    Attributes:
        used: unshared memory of this process and its descendants.
        total: memory of the machine or the container.
        processes: number of processes whose memory ``used`` counts.
    """

    used: int
    total: int
    processes: int

    @property
    def summary(self) -> str:
        """The numbers as one line of text."""
        many = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"{human_bytes(self.used)} of {human_bytes(self.total)}{many}"


@dataclass(frozen=True)
class Gpu:
    """A GPU of this machine with its current load, which includes the work of other processes.

    Attributes:
        busy: utilisation in percent, 0 to 100; ``None`` if the GPU does not report it.
        used, total: used and total memory in bytes.
    """

    index: int
    name: str
    busy: float | None
    used: int
    total: int

    @property
    def summary(self) -> str:
        """The numbers as one line of text."""
        busy = f"{self.busy:.0f} % busy, " if self.busy is not None else ""
        return f"GPU {self.index} {self.name}: {busy}{human_bytes(self.used)} of {human_bytes(self.total)}"


def process_tree_memory() -> Memory:
    """Return the memory of this process and its descendants. Ray's workers are descendants if this process started Ray.

    Shared pages, such as the code of libraries, are not counted if the system reports them separately.
    """
    this = psutil.Process()
    used = count = 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # the process has ended in the meantime
            found = process.memory_info()
            used += found.rss - getattr(found, "shared", 0)
            count += 1
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # the file says "max" (no limit) or does not exist
        total = min(total, int(_CGROUP_LIMIT.read_text()))
    return Memory(used, total, count)


def local_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that ``nvidia-smi`` lists; none if it is missing, fails or does not answer in 5 seconds."""
    command = ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:  # a new session, so that Ctrl-C does not reach the program
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_nvidia_smi(output.stdout)


def parse_nvidia_smi(output: str) -> tuple[Gpu, ...]:
    """Return the GPUs in the output of ``nvidia-smi``, which prints ``_SMI_FIELDS`` of each, with memory in MiB."""
    found = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        with suppress(ValueError):  # the memory is "[N/A]", or the line does not describe a GPU
            index, name, busy, used, total = fields
            percent = float(busy) if busy.replace(".", "").isdigit() else None
            found.append(Gpu(int(index), name, percent, int(used) * 2**20, int(total) * 2**20))
    return tuple(found)


def has_ended(pid: int, started: float) -> bool:
    """Return whether a process of this machine has ended, even if another process has its id now.

    ``started``: the result of :func:`process_start_time` in that process. Status files, and leases of earlier versions,
    hold the seconds since the epoch instead.
    """
    try:
        times = process_start_time(pid), psutil.Process(pid).create_time()
        return all(abs(time - started) > 2.0 for time in times)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # another user's process, which this process may not read
        return False


def process_start_time(pid: int | None = None) -> float:
    """Return when a process was started, by default this one, in seconds since the machine's boot; on macOS since 1970.

    On Linux, the time since 1970 of every process changes when the clock is set.
    """
    boot = psutil.boot_time() if psutil.LINUX else 0.0  # first: some versions of psutil keep it for ``create_time``
    return float(psutil.Process(pid).create_time() - boot)
