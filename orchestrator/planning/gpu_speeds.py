"""How fast kinds of GPUs are: the data sheets' peaks, and the share of the peak that image towers are assumed to reach.

Plans divide counted operations by these rates. Nothing here was measured on a GPU; ``benchmarks/gpu.py`` measures it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

from bolt.protocol import Precision
from orchestrator.util.errors import unknown_name

PRECISIONS: tuple[Precision, ...] = get_args(Precision)


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU.

    Attributes:
        title: its name for people.
        peaks: precision -> 10^12 operations a second of dense matrix products (no sparsity, sums in float32); a
            precision that its tensor cores lack is left out.
        source: the document that states the peaks.
    """

    title: str
    peaks: Mapping[Precision, float]
    source: str


def _kind(title: str, float32: float, tf32: float | None, bfloat16: float | None, source: str) -> GpuKind:
    peaks: dict[Precision, float | None] = {"float32": float32, "tf32": tf32, "bfloat16": bfloat16}
    return GpuKind(title, {name: peak for name, peak in peaks.items() if peak is not None}, source)


GPU_KINDS: Mapping[str, GpuKind] = {
    "h200": _kind("NVIDIA H200 SXM", 67, 494.7, 989.4, "NVIDIA H200 data sheet, halved where it counts sparsity"),
    "h100": _kind("NVIDIA H100 SXM", 67, 494.7, 989.4, "NVIDIA H100 data sheet, halved where it counts sparsity"),
    "a100": _kind("NVIDIA A100", 19.5, 156, 312, "NVIDIA A100 data sheet"),
    "l40s": _kind("NVIDIA L40S", 91.6, 183, 362, "NVIDIA L40S data sheet"),
    "l4": _kind("NVIDIA L4", 30.3, 60, 121, "NVIDIA L4 data sheet, halved where it counts sparsity"),
    "4090": _kind("NVIDIA GeForce RTX 4090", 82.6, 82.6, 165.2, "NVIDIA Ada architecture paper, sums in float32"),
    "v100": _kind("NVIDIA V100 SXM2", 15.7, None, None, "NVIDIA V100 data sheet"),
    "t4": _kind("NVIDIA T4", 8.1, None, None, "NVIDIA T4 data sheet"),
}
"""The kinds that ``plan --gpu`` knows, by the name that it takes."""

_TOWER_GFLOPS = (8.8, 35.0, 162.0)
"""10^9 operations an image of ViT-B/32, B/16 and L/14: the towers that the shares below are for."""

SUSTAINED_SHARES: Mapping[Precision, tuple[float, float, float]] = {
    "float32": (0.67, 0.67, 0.67),
    "tf32": (0.30, 0.44, 0.53),
    "bfloat16": (0.20, 0.33, 0.43),
}
"""The share of the peak that batches of 32 images are assumed to sustain, for the three towers. On an H200 that is 45,
150 to 260 and 200 to 430 TFLOP/s. Smaller GPUs need less work to be full, so for them the shares are cautious."""


def find_gpu(name: str) -> GpuKind:
    """The kind of GPU with a name such as ``h200``, or as the driver prints it, such as ``NVIDIA A100-SXM4-80GB``.

    Raises ``UserError`` with the nearest names for a kind that is not in the table.
    """
    words = re.findall(r"[a-z0-9]+", name.lower())
    for word in words:
        if word.removeprefix("rtx") in GPU_KINDS:
            return GPU_KINDS[word.removeprefix("rtx")]
    raise unknown_name("kind of GPU", name, GPU_KINDS, where="--gpu")


def sustained_tflops(gpu: GpuKind, precision: Precision, gflops_per_image: float) -> float | None:
    """10^12 operations a second in a tower that takes ``gflops_per_image``; ``None`` if the GPU lacks the precision.

    Between the three towers the share is interpolated in the logarithm of the operations; beyond them it stays.
    """
    if precision not in gpu.peaks:
        return None
    shares = SUSTAINED_SHARES[precision]
    towers = list(zip(map(math.log, _TOWER_GFLOPS), shares, strict=True))
    share = shares[0]
    for (low, first), (high, second) in pairwise(towers):
        position = (math.log(gflops_per_image) - low) / (high - low)
        share += (second - first) * min(max(position, 0.0), 1.0)
    return share * gpu.peaks[precision]
