"""Measures the peak memory of a cell, and limits the cell to its share of a GPU's memory."""

import contextlib
import resource
import sys
from pathlib import Path

import torch

from bolt.util.freed_memory import return_freed_memory
from orchestrator.core.gpu_memory import CONTEXT_MIB


def limit_gpu_memory(device: str, share: float) -> None:
    """Limit this process to its share of a GPU's memory, CUDA's context included.

    Beyond the limit, torch raises an out-of-memory error.
    """
    if share >= 1.0 or not device.startswith("cuda"):
        return
    _, total = torch.cuda.mem_get_info()
    own = share - CONTEXT_MIB * 2**20 / total
    torch.cuda.set_per_process_memory_fraction(max(own, share / 4))


def reset_peak_memory(device: str) -> None:
    """Start a new measurement for :func:`peak_memory_mib`, after returning freed memory to the system."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return
    return_freed_memory()
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_mib(device: str) -> tuple[float, float]:
    """Return the peaks of used and of reserved memory since :func:`reset_peak_memory`, in MiB.

    On an accelerator, torch reserves more memory than it uses, and other processes cannot take reserved memory. CUDA's
    own context is not counted. On the CPU, the first number is the resident memory of the process and the second is 0.
    Only Linux can reset the peak of a process. On other systems, the peak since the process began is returned.
    """
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20, torch.cuda.max_memory_reserved() / 2**20
    with contextlib.suppress(OSError, StopIteration):
        status = Path("/proc/self/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024, 0.0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / (2**20 if sys.platform == "darwin" else 1024), 0.0
