"""The speeds of kinds of GPUs: the peaks of the data sheets, and the share of the peak that image towers reach.

A plan estimates the time as counted operations / (peak x share). The shares were measured on one H200 by
``benchmarks/gpu.py``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np

from bolt.protocol import Precision
from orchestrator.util.errors import unknown_name

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU.

    Attributes:
        peaks: precision -> speed of dense matrix products (no sparsity, sums in float32), in 10^12 operations a second.
            Precisions that the GPU's tensor cores lack are left out.
        source: the document that states the peaks.
    """

    title: str
    peaks: Mapping[Precision, float]
    source: str


def _kind(title: str, source: str, *peaks: float) -> GpuKind:
    """Return a kind of GPU. ``peaks``: its peak speeds in float32, tf32 and bfloat16, or in float32 alone."""
    return GpuKind(title, dict(zip(PRECISIONS, peaks, strict=False)), source)


GPU_KINDS: Mapping[str, GpuKind] = {
    "h200": _kind("NVIDIA H200 SXM", "NVIDIA H200 data sheet, halved where it counts sparsity", 67, 494.7, 989.4),
    "h100": _kind("NVIDIA H100 SXM", "NVIDIA H100 data sheet, halved where it counts sparsity", 67, 494.7, 989.4),
    "a100": _kind("NVIDIA A100", "NVIDIA A100 data sheet", 19.5, 156, 312),
    "l40s": _kind("NVIDIA L40S", "NVIDIA L40S data sheet", 91.6, 183, 362),
    "l4": _kind("NVIDIA L4", "NVIDIA L4 data sheet, halved where it counts sparsity", 30.3, 60, 121),
    "4090": _kind("NVIDIA GeForce RTX 4090", "NVIDIA Ada architecture paper, sums in float32", 82.6, 82.6, 165.2),
    "v100": _kind("NVIDIA V100 SXM2", "NVIDIA V100 data sheet", 15.7),
    "t4": _kind("NVIDIA T4", "NVIDIA T4 data sheet", 8.1),
}
"""The kinds of GPUs by their name in ``plan --gpu``."""

_TOWER_GFLOPS = (8.8, 35.0, 162.0)
"""Operations for one image, in units of 10^9, of the towers of :data:`SUSTAINED_SHARES`: ViT-B/32, B/16 and L/14."""

SUSTAINED_SHARES: Mapping[Precision, tuple[float, float, float]] = {
    "float32": (0.42, 0.51, 0.51),
    "tf32": (0.16, 0.20, 0.34),
    "bfloat16": (0.10, 0.19, 0.23),
}
"""The speed that an H200 with torch 2.11 sustained while it computed batches of 32 images, as a share of its peak, for
each of the three towers. The shares of B/32 and B/16 were measured in BOLT's training step. For L/14 the forward pass
was measured; in float32, the share of B/16 is used instead. A smaller GPU needs less work to be fully used, so it is
assumed to sustain at least these shares."""


def find_gpu(name: str) -> GpuKind:
    """Return the kind of GPU with a name such as ``h200``, or a driver's name such as ``NVIDIA A100-SXM4-80GB``.

    Raises ``UserError`` with the nearest names for a kind that is not in :data:`GPU_KINDS`.
    """
    for word in re.findall(r"[a-z0-9]+", name.lower()):
        if word.removeprefix("rtx") in GPU_KINDS:
            return GPU_KINDS[word.removeprefix("rtx")]
    raise unknown_name("kind of GPU", name, GPU_KINDS, where="--gpu")


def sustained_tflops(gpu: GpuKind, precision: Precision, gflops_per_image: float) -> float:
    """Return the speed that a GPU sustains in a tower of ``gflops_per_image``, in 10^12 operations a second.

    :data:`SUSTAINED_SHARES` has the share of the peak for three towers. Between two of them, the share is interpolated
    in the logarithm of the operations. Beyond the smallest and the largest tower, the share is constant.
    """
    share = np.interp(math.log(gflops_per_image), np.log(_TOWER_GFLOPS), SUSTAINED_SHARES[precision])
    return float(share) * gpu.peaks[precision]
