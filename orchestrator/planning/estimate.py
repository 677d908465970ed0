"""Estimates the time of a plan, from similar finished cells or else from counted operations."""

from collections import defaultdict
from collections.abc import Sequence

from bolt.protocol import Precision
from orchestrator.planning.gpu_speeds import GpuKind, find_gpu, sustained_tflops
from orchestrator.planning.plan import Plan
from orchestrator.util.errors import UserError
from orchestrator.util.machine import Gpu, local_gpus
from orchestrator.util.units import human_duration, pluralize

GPU_TFLOPS = 20.0
"""Assumed speed of a GPU of unknown kind, in 10^12 operations a second. Estimates print it as an assumption."""

CORE_TFLOPS = 0.02
"""Assumed speed of one CPU core, in 10^12 operations a second, as measured on two server cores."""

_TOWER_GFLOPS = 35.0
"""Operations of ViT-B/16 for one image, in units of 10^9. For a GPU of a known kind, the speed in a tower of this size
is used."""


def assumed_gpu_tflops(gpus: Sequence[Gpu] | None = None) -> float:
    """Return the speed of the slowest of ``gpus`` in its default precision, in 10^12 operations a second.

    By default, ``gpus`` are those of this machine. Without a GPU, or if one is of an unknown kind, the speed is assumed
    to be ``GPU_TFLOPS``.
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


def assumed_gflops(device: str | None, threads: int) -> float:
    """Return the assumed speed of this machine's GPU or of ``threads`` CPU cores, in 10^9 operations a second.

    The CPU cores are taken if ``device`` is ``cpu``, or if the machine has no GPU.
    """
    return 1e3 * (assumed_gpu_tflops() if device != "cpu" and local_gpus() else CORE_TFLOPS * threads)


def estimate(plan: Plan) -> tuple[list[float], float]:
    """Return the predicted seconds of cells to do, and the operations of work without a prediction, in units of 10^12.

    A cell has no prediction if no similar cell was measured. Missing artifacts never have a prediction here.
    """
    seconds, gflop = list[float](), sum(artifact.gflops(plan.catalog) for artifact in plan.missing)
    for cells in plan.equal_cost_groups:
        work = plan.costs.work(cells[0])
        if (found := plan.costs.predict(work)) is None:
            gflop += len(cells) * work.gflop
        else:
            seconds += len(cells) * [found]
    return seconds, gflop / 1e3


def estimate_line(plan: Plan) -> str:
    """Return the estimated time of the remaining work in one line, with the basis of the estimate."""
    if not plan.todo:
        return "nothing to do"
    measured, tflop = estimate(plan)
    others, parts = len(plan.todo) - len(measured), []
    if measured:
        devices = ", ".join(sorted({result.manifest.device for result in plan.done}))
        parts.append(
            f"{human_duration(sum(measured))} on one device for {_cells(len(measured))}, from similar finished cells "
            f"on {devices}"
        )
    if others or tflop:
        what = f"{_cells(others)} and the artifacts" if others else "the artifacts"
        gpu_tflops = assumed_gpu_tflops()
        on_gpu, on_core = (human_duration(tflop / speed) for speed in (gpu_tflops, CORE_TFLOPS))
        parts.append(
            f"{on_gpu} of one GPU, or {on_core} of one CPU core, for {what} (counted operations at an assumed "
            f"{gpu_tflops:.3g} TFLOP/s per GPU and {CORE_TFLOPS:g} per core)"
        )
    return f"estimate: {'; '.join(parts)}"


def gpu_hours(plan: Plan, gpu: GpuKind) -> dict[Precision, float]:
    """Return the hours that the cells to do and the missing artifacts take on one GPU, in each number format."""
    gflops: dict[str, float] = defaultdict(float)
    for cells in plan.equal_cost_groups:
        gflops[cells[0].backbone.name] += len(cells) * plan.costs.work(cells[0]).gflop
    for spec in plan.missing:
        if (backbone := getattr(spec, "backbone", None)) is not None:
            gflops[backbone.name] += spec.gflops(plan.catalog)
    work = [(gflop, plan.catalog.backbone(name).gflops_per_image) for name, gflop in gflops.items()]
    return {
        precision: sum(gflop / (3.6e6 * sustained_tflops(gpu, precision, size)) for gflop, size in work)
        for precision in gpu.peaks
    }


def gpu_hours_line(plan: Plan, gpu: GpuKind) -> str:
    """Return the hours on one GPU in one line, with the basis of the estimate."""
    hours = ", ".join(f"{value:,.1f} h in {precision}" for precision, value in gpu_hours(plan, gpu).items())
    return (
        f"on one {gpu.title}, artifacts included: {hours}, if the counted operations run at the share of the peak "
        f"speeds ({gpu.source}) that an H200 reached. Decoding, views, launches and cells that train on cached "
        "features are not counted"
    )


def race_range(whole: Plan, first: Plan, gpu: GpuKind | None) -> str:
    """Return the smallest and the largest number of cells that a race measures, in a sentence.

    Args:
        whole: the plan without a race.
        first: the plan of the cells that the race measures first. If they decide everything, the race ends.
    """
    if not first.places:
        return "a race has nothing to decide: it needs two methods on six datasets, or on five with two seeds"
    if not first.todo:
        return "a race needs nothing more"
    line = f"a race measures {len(first.todo)} to {pluralize(len(whole.todo), 'cell')}"
    if gpu is not None:
        least, most = gpu_hours(first, gpu), gpu_hours(whole, gpu)
        hours = (f"{least[p]:,.1f} to {most[p]:,.1f} h in {p}" for p in most)
        line = f"{line}, on one {gpu.title} {', '.join(hours)}"
    return f"{line}; the more the methods differ, the fewer cells it needs"


def _cells(count: int) -> str:
    return pluralize(f"{count:,}", "cell")
