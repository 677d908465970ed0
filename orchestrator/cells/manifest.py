"""What a result was made with: code, packages, processor, memory."""

from __future__ import annotations

import contextlib
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from orchestrator.store.results import Manifest

if TYPE_CHECKING:
    from orchestrator.artifacts.loaded import LoadedArtifacts

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow", "scikit-learn", "peft", "ray")
_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")


def make_manifest(loaded: LoadedArtifacts, artifacts: tuple[str, ...]) -> Manifest:
    """The manifest of a result that was finished now and read these artifacts."""
    commit, dirty = _commit()
    return Manifest(
        commit=commit,
        dirty=dirty,
        versions=_versions(),
        device=_device_name(loaded.device),
        threads=loaded.settings.threads,
        artifacts=artifacts,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


@lru_cache(maxsize=1)
def _commit() -> tuple[str, bool]:
    """Commit of the checkout the project runs from, and whether files differ from it; empty for an installed copy."""
    root = Path(__file__).resolve().parent.parent.parent

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()

    if not (root / ".git").exists():
        return "", False
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.SubprocessError):
        return "", False


@lru_cache(maxsize=4)
def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu: {line.split(':', 1)[1].strip()}"
    return f"cpu: {platform.processor() or platform.machine()}"


class PeakMemory:
    """Measures the highest memory in use while the block runs.

    On an accelerator, what torch allocated. On the CPU, the process's resident memory: exact on Linux, where the
    mark can be reset; elsewhere the highest since the process began.

    Attributes:
        mebibytes: the highest, when the block has ended.
        reserved_mebibytes: what torch had set aside on an accelerator at most, which is what its neighbours cannot
            have; more than it allocated, and without the context that CUDA itself keeps. 0 on the CPU.
    """

    def __init__(self, device: str) -> None:
        self._cuda = device.startswith("cuda")
        self.mebibytes = 0.0
        self.reserved_mebibytes = 0.0

    def __enter__(self) -> PeakMemory:
        if self._cuda:
            import torch

            torch.cuda.empty_cache()  # or a kept worker's last cell would be counted to this one
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
