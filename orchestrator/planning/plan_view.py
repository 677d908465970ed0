"""What ``plan`` prints."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.planning.disk import check_disk_space, disk_line
from orchestrator.planning.inputs import missing_inputs
from orchestrator.planning.packing import ASSUMED_GPU_MIB, CONTEXT_MIB, HEADROOM, Demand, Packing
from orchestrator.planning.plan import Plan, artifact_counts
from orchestrator.store import Store
from orchestrator.util.errors import UserError
from orchestrator.util.machine import local_gpus
from orchestrator.util.units import human_bytes

SHOWN_MISSING = 6
SHOWN_ALIKE = 4


def plan_view(plan: Plan, store: Store, disk_budget: int | None = None, gpu_bytes: int | None = None) -> RenderableType:
    """Tables of cells, artifacts and GPU packing, and the estimate with what it is based on.

    Args:
        plan: what to show.
        store: where its artifacts will be.
        disk_budget: bytes that the artifacts to build may take; ``None`` for the free space.
        gpu_bytes: memory of the GPUs to show the packing for; ``None`` for the GPUs of this machine.
    """
    grid = plan.grid
    parts: list[RenderableType] = [Text(f"{grid.name}: {grid.title}", style="bold"), Text(counts_line(plan))]
    parts += [Text(), _cell_table(plan), Text(), _artifact_table(plan)]
    parts += [Text(disk_line(plan, store)), Text()]
    if plan.todo:
        parts += [packing_view(plan, gpu_bytes), Text()]
    parts.append(Text(estimate_line(plan)))
    try:
        check_disk_space(plan, store, disk_budget)
    except UserError as error:
        parts.append(Text(f"\n{error}", style="yellow"))
    if absent := list(missing_inputs(plan)):
        shown = ", ".join(absent[:SHOWN_MISSING]) + (
            f" and {len(absent) - SHOWN_MISSING} more" * (len(absent) > SHOWN_MISSING)
        )
        parts.append(Text(f"\nnot on this machine: {shown}", style="yellow"))
        parts.append(Text(f"`doctor {grid.name}` says how to get each"))
    parts.append(Text(f"\nstore: {store.url}"))
    return Group(*parts)


def counts_line(plan: Plan) -> str:
    """Done, open and failed cells in one line."""
    open_cells = len(plan.todo)
    line = f"{len(plan.cells)} cells: {len(plan.done)} done, {open_cells} to do, {len(plan.failed)} failed"
    if plan.damaged:
        line += f" ({len(plan.damaged)} damaged result files were set aside and count as to do)"
    return line


def estimate_line(plan: Plan) -> str:
    """What is left, in device time, and what the figure is based on."""
    if not plan.todo:
        return "nothing to do"
    return f"estimate: {plan.estimate.summary}"


def _cell_table(plan: Plan) -> Table:
    """Tracks and methods down, backbones across."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    counts = Counter((cell.track, plan.grid.label(cell), cell.backbone.name) for cell in plan.cells)
    scores = Counter[str]()
    for cell in plan.cells:
        scores[cell.track] += len(cell.evaluate_on)
    backbones = list(dict.fromkeys(cell.backbone.name for cell in plan.cells))
    table.add_column("cells")
    for backbone in (*backbones, "in all"):
        table.add_column(backbone, justify="right")
    for track in scores:
        methods = list(dict.fromkeys(plan.grid.label(cell) for cell in plan.grid.cells if cell.track == track))
        sums = [sum(counts[track, method, backbone] for method in methods) for backbone in backbones]
        title = track if scores[track] == sum(sums) else f"{track} ({scores[track]} scores)"
        table.add_row(title, *(f"{count:,}" for count in (*sums, sum(sums))), style="bold")
        for method in methods:
            row = [counts[track, method, backbone] for backbone in backbones]
            table.add_row(f"  {method}", *(f"{count:,}" if count else "-" for count in (*row, sum(row))))
    return table


def _artifact_table(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("artifacts the open cells need")
    for heading in ("in all", "to build", "size to build"):
        table.add_column(heading, justify="right")
    total = 0
    for title, (every, todo, size) in artifact_counts(plan).items():
        total += size
        table.add_row(title, str(every), str(todo), human_bytes(size) if todo else "-")
    table.add_row("total", "", "", human_bytes(total), style="dim")
    return table


def packing_view(plan: Plan, gpu_bytes: int | None = None) -> RenderableType:
    """How many of the open cells one GPU holds at a time, by method and backbone, and by what memory."""
    size, whose = _gpu(gpu_bytes)
    packing = Packing(plan.catalog, plan.costs, size)
    demands: dict[tuple[str, str], Demand] = {}
    for cell in plan.todo:
        key = plan.grid.label(cell), cell.backbone.name
        demands[key] = max(packing.demand(cell), demands.get(key, Demand(0.0)), key=lambda demand: demand.share)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"one GPU of {human_bytes(size * 2**20)}{whose} holds")
    backbones = list(dict.fromkeys(backbone for _, backbone in demands))
    for backbone in backbones:
        table.add_column(backbone, justify="right")
    alike: dict[tuple[str, ...], list[str]] = {}
    for method in dict.fromkeys(method for method, _ in demands):
        shown = (demands.get((method, backbone)) for backbone in backbones)
        alike.setdefault(tuple(demand.summary if demand else "-" for demand in shown), []).append(method)
    for row, methods in alike.items():
        more = f" and {len(methods) - SHOWN_ALIKE} more" * (len(methods) > SHOWN_ALIKE)
        table.add_row(f"  {', '.join(methods[:SHOWN_ALIKE])}{more}", *row)
    measured = any(demand.mib is not None for demand in demands.values())
    note = f"measured: with {human_bytes(CONTEXT_MIB * 2**20)} assumed for CUDA itself, x {HEADROOM:g}; " * measured
    note += "assumed: a whole GPU where a tower is trained, else a quarter"
    return Group(table, Text(note, style="dim"))


def _gpu(gpu_bytes: int | None) -> tuple[float, str]:
    """Memory in MiB of the GPUs that a plan is shown for, and where that comes from."""
    if gpu_bytes is not None:
        return gpu_bytes / 2**20, ""
    if here := local_gpus():
        return min(gpu.total for gpu in here) / 2**20, ""
    return ASSUMED_GPU_MIB, " (assumed, --gpu-memory says another)"
