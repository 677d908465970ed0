"""Hardware of this machine: the processors and memory that this process may use, what it uses, and the GPUs."""

from __future__ import annotations

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
    """Return the number of processors that this process may use.

    A container or a batch system can grant fewer than exist.
    """
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Memory:
    """RAM in bytes.

    Attributes:
        used: unshared memory of this process and its descendants.
        total: memory of the machine or the container.
        processes: how many processes were counted.
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
    """One GPU of this machine and its current load, which includes the work of other processes.

    Attributes:
        busy: utilisation in percent, 0 to 100; ``None`` if the GPU does not report it.
        used, total: bytes of its memory.
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
    """Return the memory of this process and its descendants, with Ray's workers unless Ray was already running.

    Pages that processes share (the libraries' code) are not counted where the system reports them separately.
    """
    this = psutil.Process()
    used = count = 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # the process has ended meanwhile
            found = process.memory_info()
            used += found.rss - getattr(found, "shared", 0)
            count += 1
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # "max", or no such file
        total = min(total, int(_CGROUP_LIMIT.read_text()))
    return Memory(used, total, count)


def local_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs of this machine, from ``nvidia-smi``.

    The result is empty if that program is missing, fails or does not answer in 5 seconds.
    """
    command = ["nvidia-smi", f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"]
    try:  # a session of its own, so that Ctrl-C does not reach it
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_nvidia_smi(output.stdout)


def parse_nvidia_smi(output: str) -> tuple[Gpu, ...]:
    """Parse the output of ``nvidia-smi`` for the fields ``_SMI_FIELDS``; it gives memory in MiB."""
    found = []
    for line in output.splitlines():
        fields = [field.strip() for field in line.split(",")]
        with suppress(ValueError):  # "[N/A]" for the memory, or a line of another kind
            index, name, busy, used, total = fields
            percent = float(busy) if busy.replace(".", "").isdigit() else None
            found.append(Gpu(int(index), name, percent, int(used) * 2**20, int(total) * 2**20))
    return tuple(found)


def has_ended(pid: int, started: float) -> bool:
    """Whether a process of this machine has ended; the system may have given its id to another process since.

    ``started``: what :func:`process_start_time` said in that process.
    """
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) > 2.0)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # another user's process, which this one may not read
        return False


def process_start_time() -> float:
    """Return when this process was started, in seconds since the epoch."""
    return float(psutil.Process().create_time())
