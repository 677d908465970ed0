"""The manifest of a result: the code, packages and processor that made it."""

import contextlib
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import torch

from bolt.clip.precision import used_precision
from bolt.protocol import Precision
from bolt.util.outside import outside_packages
from orchestrator.artifacts.spec import ArtifactCache
from orchestrator.store.results import Manifest

PACKAGES = ("torch", "torchvision", "open_clip_torch", "numpy", "pillow", "scikit-learn", "ray")


def make_manifest(loaded: ArtifactCache, addresses: tuple[str, ...], precision: Precision | None = None) -> Manifest:
    """Return the manifest of a result that this process has just measured.

    Args:
        addresses: the addresses of the artifacts that the cell read.
        precision: the cell's number format; ``None`` for the default of the device.
    """
    commit, dirty = _commit()
    return Manifest(
        commit=commit,
        dirty=dirty,
        versions=_versions(),
        device=_device_name(loaded.device),
        threads=loaded.settings.threads,
        artifacts=addresses,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        precision=used_precision(precision, loaded.device),
    )


@lru_cache(maxsize=1)
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found | outside_packages()


@lru_cache(maxsize=1)
def _commit() -> tuple[str, bool]:
    """Return the commit of the checkout, and whether files differ from it; an empty commit for an installed copy."""
    root = Path(__file__).resolve().parent.parent.parent
    if not (root / ".git").exists():
        return "", False
    command = ["git", "-C", str(root), "status", "--porcelain=v2", "--branch"]
    try:
        lines = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return "", False
    header = "# branch.oid "
    commit = next((line.removeprefix(header) for line in lines if line.startswith(header)), "")
    return commit, any(not line.startswith("#") for line in lines)


@lru_cache(maxsize=4)
def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(device))
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"cpu: {line.split(':', 1)[1].strip()}"
    return f"cpu: {platform.processor() or platform.machine()}"
