"""Memory of one cell: how much it used, and the limit of its share of a GPU."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from types import TracebackType

from orchestrator.core.gpu_memory import CONTEXT_MIB

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def limit_gpu_memory(device: str, share: float) -> None:
    """Limit this process to its share of a GPU's memory, CUDA's context included.

    Torch raises an out-of-memory error when the process needs more.
    """
    if share >= 1.0 or not device.startswith("cuda"):
        return
    import torch

    _, total = torch.cuda.mem_get_info()
    own = share - CONTEXT_MIB * 2**20 / total
    torch.cuda.set_per_process_memory_fraction(max(own, share / 4))


class PeakMemory:
    """Measures the most memory in use while the block runs.

    On an accelerator this is what torch allocated. On the CPU it is the process's resident memory. Linux can reset its
    mark; elsewhere it is the most since the process began.

    Attributes:
        mebibytes: the most memory in use, known when the block has ended.
        reserved_mebibytes: the most that torch reserved on an accelerator, so that other processes cannot have it. It
            is more than torch allocated and excludes CUDA's own context. 0 on the CPU.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.mebibytes = 0.0
        self.reserved_mebibytes = 0.0

    def __enter__(self) -> PeakMemory:
        if self._cuda:
            import torch

            torch.cuda.empty_cache()  # or memory of this worker's last cell would count
            torch.cuda.reset_peak_memory_stats()
        else:
            with contextlib.suppress(OSError):
                _CLEAR_REFS.write_text("5")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._cuda:
            import torch

            self.mebibytes = torch.cuda.max_memory_allocated() / 2**20
            self.reserved_mebibytes = torch.cuda.max_memory_reserved() / 2**20
        else:
            self.mebibytes = _resident_peak_mebibytes()


def _resident_peak_mebibytes() -> float:
    with contextlib.suppress(OSError, StopIteration):
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used / 2**20 if sys.platform == "darwin" else used / 1024
