"""How many hours a plan takes on one GPU of a kind, for each precision, and how much CPU work it takes beside it."""

from __future__ import annotations

import math
from dataclasses import astuple, fields

from rich.console import Group, RenderableType
from rich.text import Text

from bolt.protocol import Precision
from orchestrator.artifacts.host_work import HostWork
from orchestrator.catalog import Catalog
from orchestrator.planning.gpu_speeds import PRECISIONS, GpuKind, sustained_tflops
from orchestrator.planning.plan import Plan
from orchestrator.planning.workload import PAPER_METHODS, Workload, workload
from orchestrator.util.console import plain_table

HOUR = 3600.0


def gpu_seconds(work: Workload, catalog: Catalog, gpu: GpuKind, precision: Precision) -> float | None:
    """Seconds of the counted operations on one GPU; ``None`` if it lacks the precision."""
    seconds = 0.0
    for backbone, gflop in work.gflops.items():
        tflops = sustained_tflops(gpu, precision, catalog.backbone(backbone).gflops_per_image)
        if tflops is None:
            return None
        seconds += gflop / (1e3 * tflops)
    return seconds


def cores_needed(work: Workload, seconds: float) -> int:
    """The CPU cores beside one GPU with which the host's work takes no longer than the GPU's."""
    return max(1, math.ceil(work.host.seconds / seconds)) if seconds else 1


def gpu_view(plan: Plan, gpu: GpuKind) -> RenderableType:
    """A table of the hours on one GPU, and lines that say what they rest on.

    A plan with methods that are not the paper's shows the paper's own apart, with the artifacts that these need.
    """
    papers = [cell for cell in plan.todo if cell.method.name in PAPER_METHODS]
    parts = [("all to do", workload(plan, plan.todo))]
    if 0 < len(papers) < len(plan.todo):
        parts.append(("the paper's methods", workload(plan, papers)))
    numbers = ("cells", "EFLOP", *(f"{name} h" for name in PRECISIONS if name in gpu.peaks), "CPU core-h")
    table = plain_table("", *numbers, right=numbers)
    lines = []
    for title, work in parts:
        found = {precision: gpu_seconds(work, plan.catalog, gpu, precision) for precision in PRECISIONS}
        seconds = {precision: value for precision, value in found.items() if value is not None}
        hours = [f"{value / HOUR:,.1f}" for value in seconds.values()]
        exaflop = f"{sum(work.gflops.values()) / 1e9:,.2f}"
        table.add_row(title, f"{work.cells:,}", exaflop, *hours, f"{work.host.seconds / HOUR:,.1f}")
        lines.append(f"{title}: {_host_line(work.host)}; {_binding_line(work, seconds)}")
        if work.uncounted:
            lines.append(f"  {work.uncounted:,} of the cells train on cached features alone; their time is not counted")
    rests_on = (
        f"rests on: operations counted for each method and tower; {gpu.source}; assumed shares of those peaks that "
        f"towers sustain; CPU work as measured on one server core. Nothing was measured on this GPU"
    )
    heading_line = Text(f"hours on one {gpu.title}, artifacts included", style="bold")
    return Group(heading_line, table, *map(Text, lines), Text(rests_on, style="dim"))


def _host_line(host: HostWork) -> str:
    """The parts of the CPU work in hours."""
    parts = (f"{field.name} {value / HOUR:,.1f}" for field, value in zip(fields(host), astuple(host), strict=True))
    return f"CPU core-hours of {', '.join(parts)}"


def _binding_line(work: Workload, seconds: dict[Precision, float]) -> str:
    """Whether the GPU or the CPU cores beside it are the limit, for each precision."""
    needed = (f"{cores_needed(work, value)} ({precision})" for precision, value in seconds.items())
    return f"the GPU is the limit, not the CPU, with at least {', '.join(needed)} free cores for each GPU"
