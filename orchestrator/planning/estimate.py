"""How long a plan takes: measured where cells like its own have finished, else from counted operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bolt.protocol import Precision
from orchestrator.planning.gpu_speeds import find_gpu, sustained_tflops
from orchestrator.planning.plan import Plan
from orchestrator.util.errors import UserError
from orchestrator.util.machine import Gpu, local_gpus
from orchestrator.util.units import human_duration, pluralize

GPU_TFLOPS = 20.0
"""Assumed speed of a GPU of unknown kind in 10^12 operations a second, printed as an assumption."""

CORE_TFLOPS = 0.02
"""Assumed speed of one CPU core, which two server cores reached on networks of this size."""

_TOWER_GFLOPS = 35.0
"""10^9 operations an image of ViT-B/16, at whose size the speed of this machine's GPUs is assumed."""


def assumed_gpu_tflops(gpus: Sequence[Gpu] | None = None) -> float:
    """10^12 operations a second of the slowest of these GPUs, or of this machine's, in its default precision.

    Without a GPU, or with one of an unknown kind, it is ``GPU_TFLOPS``.
    """
    speeds = []
    for gpu in local_gpus() if gpus is None else gpus:
        try:
            kind = find_gpu(gpu.name)
        except UserError:
            return GPU_TFLOPS
        default: Precision = "tf32" if "tf32" in kind.peaks else "float32"
        speeds.append(sustained_tflops(kind, default, _TOWER_GFLOPS))
    return min(speeds, default=GPU_TFLOPS)


@dataclass(frozen=True)
class Estimate:
    """How long the cells to do and the missing artifacts of a plan take.

    Attributes:
        measured_seconds: predicted time, one after the other, of the ``measured_cells`` that are like finished cells.
        measured_on: the devices of the measurements.
        computed_tflop: 10^12 operations of the ``computed_cells``, which are all others, and of the artifacts.
    """

    measured_seconds: float
    measured_on: tuple[str, ...]
    measured_cells: int
    computed_tflop: float
    computed_cells: int


def estimate(plan: Plan) -> Estimate:
    """Estimate the time of a plan. The operations of artifacts are counted, never measured."""
    work = [plan.costs.work(cell) for cell in plan.todo]
    seconds = [plan.costs.seconds(one) for one in work]
    measured = [found for found in seconds if found is not None]
    gflop = sum(one.gflop for one, found in zip(work, seconds, strict=True) if found is None)
    gflop += sum(artifact.gflops(plan.catalog) for artifact in plan.missing)
    devices = {result.manifest.device for result in plan.done}
    return Estimate(sum(measured), tuple(sorted(devices)), len(measured), gflop / 1e3, len(work) - len(measured))


def estimate_line(plan: Plan) -> str:
    """The estimated time of the remaining work in one line, with what it is based on."""
    if not plan.todo:
        return "nothing to do"
    found, parts = estimate(plan), []
    if found.measured_cells:
        parts.append(
            f"{human_duration(found.measured_seconds)} on one device for {_cells(found.measured_cells)}, by finished "
            f"cells like them on {', '.join(found.measured_on)}"
        )
    if found.computed_cells or found.computed_tflop:
        what = f"{_cells(found.computed_cells)} and the artifacts" if found.computed_cells else "the artifacts"
        gpu_tflops = assumed_gpu_tflops()
        on_gpu, on_core = (human_duration(found.computed_tflop / speed) for speed in (gpu_tflops, CORE_TFLOPS))
        parts.append(
            f"{on_gpu} of one GPU, or {on_core} of one CPU core, for {what}, by counted operations at an assumed "
            f"{gpu_tflops:.3g} TFLOP/s a GPU and {CORE_TFLOPS:g} a core"
        )
    return f"estimate: {'; '.join(parts)}"


def _cells(count: int) -> str:
    return pluralize(f"{count:,}", "cell")
