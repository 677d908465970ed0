"""The output of the ``plan`` command: tables and lines, or plain data for programs (``--json``)."""

from collections import Counter
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.catalog.text_sizes import download_bytes
from orchestrator.core.gpu_memory import CONTEXT_MIB
from orchestrator.planning.checks import bytes_to_build, disk_line, free_bytes, plan_problems
from orchestrator.planning.estimate import estimate_line, gpu_hours, gpu_hours_line
from orchestrator.planning.gpu_speeds import GpuKind
from orchestrator.planning.packing import ASSUMED_GPU_MIB, HEADROOM, Packing
from orchestrator.planning.plan import Plan, raced_plan
from orchestrator.store import Store
from orchestrator.util.console import plain_table
from orchestrator.util.grouping import grouped
from orchestrator.util.machine import local_gpus
from orchestrator.util.units import human_bytes, listed

SHOWN_METHODS = 4


def plan_view(
    plan: Plan, store: Store, disk_budget: int | None = None, gpu_bytes: int | None = None, gpu: GpuKind | None = None
) -> RenderableType:
    """Return tables of cells, artifacts and GPU packing, and the estimate with its basis.

    Args:
        disk_budget: bytes that the artifacts to build may take; ``None`` for the free space.
        gpu_bytes: memory of the GPUs for which the packing is shown; ``None`` for the GPUs of this machine.
        gpu: the kind of GPU for which hours are shown; ``None`` to leave the hours out.
    """
    parts: list[RenderableType] = [Text(f"{plan.grid.name}: {plan.grid.title}", style="bold"), Text(plan.counts)]
    parts += [Text(), _cell_table(plan), Text(), _artifact_table(plan), Text(disk_line(plan, store)), Text()]
    if fetched := [entry for entry in plan.grid.backbones.values() if entry.weights.is_fetched and plan.todo]:
        sizes = [f"{entry.name} (about {human_bytes(download_bytes(entry))})" for entry in fetched]
        parts[-1:] = [Text(f"weights: `grid` fetches {listed(sizes, 4)}, unless they are in the cache"), Text()]
    if frozen := [name for name, entry in plan.grid.backbones.items() if not entry.has_matrices]:
        parts[-1:] = [Text(f"features only: no method of the grid trains the tower of {listed(frozen, 4)}"), Text()]
    if plan.todo:
        parts += [packing_view(plan, gpu_bytes), Text()]
    parts.append(Text(estimate_line(plan)))
    if gpu is not None and plan.todo:
        parts.append(Text(gpu_hours_line(plan, gpu)))
    parts += [Text(line, style="yellow") for line in plan.notes]
    problems = (f"\n{problem}" for problem in plan_problems(plan, store, disk_budget))
    whole = (*((text, "yellow") for text in problems), (f"\nstore: {store.url}", ""))  # they have commands and paths
    parts += [Text(text, style, no_wrap=True, overflow="ignore") for text, style in whole]
    return Group(*parts)


def _cell_table(plan: Plan) -> Table:
    """Return the counts of cells, with a row for each track and method and a column for each backbone."""
    counts = Counter((cell.track, plan.grid.label(cell), cell.backbone.name) for cell in plan.cells)
    scores = Counter(cell.track for cell in plan.cells for _ in cell.evaluate_on)
    backbones = list(dict.fromkeys(cell.backbone.name for cell in plan.cells))
    table = _table("cells", *backbones, "total")
    rows = dict.fromkeys((cell.track, plan.grid.label(cell)) for cell in plan.grid.cells)
    for track in scores:
        methods = [label for of, label in rows if of == track]
        sums = [sum(counts[track, method, backbone] for method in methods) for backbone in backbones]
        title = track if scores[track] == sum(sums) else f"{track} ({scores[track]} scores)"
        table.add_row(title, *(f"{count:,}" for count in (*sums, sum(sums))), style="bold")
        for method in methods:
            row = [counts[track, method, backbone] for backbone in backbones]
            table.add_row(f"  {method}", *(f"{count:,}" if count else "-" for count in (*row, sum(row))))
    return table


def _artifact_table(plan: Plan) -> Table:
    """Return a row for each kind of artifact, with counts and size."""
    table = _table("artifacts needed", "total", "to build", "size to build")
    for title, count in Counter(spec.title for spec in plan.artifacts).items():
        missing = [spec.size_bytes(plan.catalog) for spec in plan.missing if spec.title == title]
        table.add_row(title, str(count), str(len(missing)), human_bytes(sum(missing)) if missing else "-")
    table.add_row("total", "", "", human_bytes(bytes_to_build(plan)), style="dim")
    return table


def packing_view(plan: Plan, gpu_bytes: int | None = None) -> RenderableType:
    """Return a table that shows, by method and backbone, how many of the cells to do fit on one GPU at a time.

    A note beside each number says whether the memory of such a cell was measured or is assumed.
    """
    size, note = _gpu(gpu_bytes)
    packing, label_of = Packing(plan.catalog, plan.costs, size), plan.grid.label
    # (label, backbone) -> the largest share of a GPU that a cell asks for, and a text: how many such cells fit on a GPU
    held: dict[tuple[str, str], tuple[float, str]] = {}
    for cell, *_ in plan.equal_cost_groups:
        key, share, mib = (label_of(cell), cell.backbone.name), packing.share(cell), packing.memory_mib(cell)
        basis = f"{human_bytes(mib * 2**20)} measured" if mib else "assumed"
        held[key] = max(held.get(key, (0.0, "")), (share, f"{int(1 / share)} ({basis})"))
    backbones = list(dict.fromkeys(backbone for _, backbone in held))
    table = _table(f"one GPU of {human_bytes(size * 2**20)}{note} holds", *backbones)
    every = dict.fromkeys(method for method, _ in held)
    alike = grouped(every, lambda method: tuple(held.get((method, name), (0.0, "-"))[1] for name in backbones))
    for row, methods in alike.items():
        table.add_row(f"  {listed(methods, SHOWN_METHODS)}", *row)
    measured = any("measured" in text for _, text in held.values())
    cuda = f"an assumed {human_bytes(CONTEXT_MIB * 2**20)} for CUDA itself"
    basis = f"measured: peak memory plus {cuda}; a cell gets a share that holds {HEADROOM:g} times the sum; " * measured
    basis += "assumed: a quarter of the GPU, or more if training every weight of the tower needs more"
    return Group(table, Text(basis, style="dim"))


def _gpu(gpu_bytes: int | None) -> tuple[float, str]:
    """Return the memory, in MiB, of the GPU for which the packing is shown, and a note if the memory is assumed."""
    if gpu_bytes is not None:
        return gpu_bytes / 2**20, ""
    if here := local_gpus():
        return min(gpu.total for gpu in here) / 2**20, ""
    return ASSUMED_GPU_MIB, " (assumed; --gpu-memory changes it)"


def _table(first: str, *others: str) -> Table:
    """Return a table. The first column is aligned to the left, the other columns to the right."""
    return plain_table(first, *others, right=others)


def plan_record(plan: Plan, store: Store, disk_budget: int | None, gpu: GpuKind | None) -> dict[str, Any]:
    """Return the counts of cells and artifacts, their bytes, and the problems that keep the grid from running here.

    ``docs/automation.md`` describes the fields.
    """
    groups = Counter((cell.track, cell.backbone.name, plan.grid.label(cell)) for cell in plan.cells)
    to_do = Counter((cell.track, cell.backbone.name, plan.grid.label(cell)) for cell in plan.todo)
    kinds = Counter(spec.title for spec in plan.artifacts)
    missing = {kind: [s.size_bytes(plan.catalog) for s in plan.missing if s.title == kind] for kind in kinds}
    return {
        "grid": plan.grid.name,
        "title": plan.grid.title,
        "store": store.url,
        "cells": {
            "all": len(plan.cells),
            "finished": len(plan.done),
            "failed": len(plan.failed),
            "to_do": len(plan.todo),
        },
        "damaged": list(plan.damaged),
        "methods": [
            {"track": key[0], "backbone": key[1], "method": key[2], "cells": count, "to_do": to_do[key]}
            for key, count in groups.items()
        ],
        "artifacts": [
            {"kind": kind, "all": count, "to_build": len(missing[kind]), "bytes": sum(missing[kind])}
            for kind, count in kinds.items()
        ],
        "bytes_to_build": bytes_to_build(plan),
        "bytes_free": free_bytes(store),
        "gpu_hours": None if gpu is None else dict(gpu_hours(plan, gpu)),
        "notes": list(plan.notes),
        "problems": [str(problem) for problem in plan_problems(plan, store, disk_budget)],
    }


def race_record(plan: Plan, store: Store, gpu: GpuKind | None) -> dict[str, Any]:
    """Return the number of races of a run with ``--race``, and the fewest cells and GPU-hours that the run takes.

    There is one race for each track, protocol, backbone, domain and k where methods can be compared. The cells without
    a race are counted too.
    """
    first = raced_plan(plan, store)
    return {
        "places": len(first.places),
        "least_to_do": len(first.todo),
        "least_gpu_hours": None if gpu is None else dict(gpu_hours(first, gpu)),
    }
