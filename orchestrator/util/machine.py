"""What this machine grants this process, and what the process and its children occupy of it."""

from __future__ import annotations

import os
import shutil
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
    """Processors this process may use; a container or a batch system can grant fewer than there are."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@dataclass(frozen=True)
class Memory:
    """Main memory in bytes: what this process and all that it started hold for themselves, and what there is."""

    used: int
    total: int
    processes: int

    @property
    def summary(self) -> str:
        """As one line."""
        many = f" in {self.processes} processes" if self.processes > 1 else ""
        return f"{human_bytes(self.used)} of {human_bytes(self.total)}{many}"


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine; other people's work on it is counted too.

    Attributes:
        busy: share of the last moments in which it computed, 0 to 100; ``None`` where it does not say.
        used, total: bytes of its memory.
    """

    index: int
    name: str
    busy: float | None
    used: int
    total: int

    @property
    def summary(self) -> str:
        """As one line."""
        busy = f"{self.busy:.0f} % busy, " if self.busy is not None else ""
        return f"GPU {self.index} {self.name}: {busy}{human_bytes(self.used)} of {human_bytes(self.total)}"


def process_tree_memory() -> Memory:
    """Memory of this process and its descendants: Ray's workers are among them unless a cluster was joined.

    Pages that processes share (the libraries' code) are left out where the system tells them apart.
    """
    this = psutil.Process()
    used = count = 0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it has ended meanwhile
            found = process.memory_info()
            used += found.rss - getattr(found, "shared", 0)
            count += 1
    total = psutil.virtual_memory().total
    with suppress(OSError, ValueError):  # "max", or no such file
        total = min(total, int(_CGROUP_LIMIT.read_text()))
    return Memory(used, total, count)


def local_gpus() -> tuple[Gpu, ...]:
    """The GPUs of this machine, by NVIDIA's library where it is installed, else by ``nvidia-smi``; none without."""
    try:
        return _gpus_by_library()
    except ImportError:
        return _gpus_by_command()
    except Exception:  # the library without a driver, or a driver it does not fit
        return ()


def _gpus_by_library() -> tuple[Gpu, ...]:
    import pynvml

    pynvml.nvmlInit()
    try:
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            busy = None
            with suppress(pynvml.NVMLError):  # a slice of a GPU does not say
                busy = float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            found.append(Gpu(index, str(pynvml.nvmlDeviceGetName(handle)), busy, int(memory.used), int(memory.total)))
        return tuple(found)
    finally:
        pynvml.nvmlShutdown()


def _gpus_by_command() -> tuple[Gpu, ...]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    try:
        said = subprocess.run(
            [command, f"--query-gpu={_SMI_FIELDS}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=_SMI_SECONDS,
            check=True,
            start_new_session=True,  # Ctrl-C is not for it
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_nvidia_smi(said)


def parse_nvidia_smi(said: str) -> tuple[Gpu, ...]:
    """The GPUs in what ``nvidia-smi`` prints for the fields asked for; memory there is in MiB."""
    found = []
    for line in said.splitlines():
        fields = [field.strip() for field in line.split(",")]
        with suppress(ValueError):  # "[N/A]" for the memory, or a line of another kind
            index, name, busy, used, total = fields
            percent = float(busy) if busy.replace(".", "").isdigit() else None
            found.append(Gpu(int(index), name, percent, int(used) * 2**20, int(total) * 2**20))
    return tuple(found)


def has_ended(pid: int, started: float) -> bool:
    """Whether a process of this machine is gone.

    Args:
        pid: its number, which another process may have by now.
        started: when it was started, in seconds since the epoch, as :func:`process_start_time` said.
    """
    try:
        return bool(abs(psutil.Process(pid).create_time() - started) > 2.0)
    except psutil.NoSuchProcess:
        return True
    except psutil.Error:  # somebody else's process, of which nothing may be read
        return False


def process_start_time() -> float:
    """When this process was started, in seconds since the epoch."""
    return float(psutil.Process().create_time())
