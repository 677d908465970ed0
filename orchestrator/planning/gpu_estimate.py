"""How many hours a plan takes on one GPU of a kind, for each precision, and how much CPU work it takes beside it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import asdict, dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from bolt.clip.text_tower import PROMPTS_AT_ONCE
from bolt.protocol import Precision
from bolt.task.scoring import SCORING_BATCH
from orchestrator.artifacts.host_work import (
    BASIS_PER_NUMBER,
    READ_PER_NUMBER,
    HostWork,
    launches,
    test_images_read,
    views_on_device,
)
from orchestrator.artifacts.required import configured_method, required_artifacts
from orchestrator.catalog import Catalog
from orchestrator.catalog.text_sizes import text_sizes
from orchestrator.core.cell import Cell
from orchestrator.planning.cost import cell_gflops, images_scored
from orchestrator.planning.gpu_speeds import GpuKind, sustained_tflops
from orchestrator.planning.plan import Plan
from orchestrator.tracks import TRACKS
from orchestrator.util.console import plain_table

PAPER_METHODS = frozenset({
    "zero_shot", "linear_probe", "tip_adapter", "lp_plus_plus", "lora", "layer_norm", "atlas", "bolt", "bolt_pooled",
    "full_finetune", "meta_init",
})  # fmt: skip
"""The methods of the BOLT paper's tables and figures. Other methods make a grid larger than the paper's."""

HOUR = 3600.0

_MANY_CORES = 128
"""More cores than a server has for each of its GPUs."""
_BATCH_SIZE = 32
"""Images of a training step of a method whose settings do not say it."""


@dataclass(frozen=True)
class Workload:
    """The work of some cells and of the missing artifacts that they need.

    Attributes:
        uncounted: how many of the cells train on cached features. The time of such a cell is that of launching small
            operators, and is not counted.
        gflops: backbone -> 10^9 operations in its towers.
    """

    cells: int
    uncounted: int
    gflops: Mapping[str, float]
    host: HostWork


def workload(plan: Plan, cells: Iterable[Cell]) -> Workload:
    """The work of those of the plan's cells, and of the missing artifacts that they need."""
    wanted, missing = list(cells), set(plan.missing)
    gflops: dict[str, float] = defaultdict(float)
    host, uncounted = HostWork(), 0
    prepared: set[Hashable] = set()
    of_work: dict[Hashable, tuple[float, HostWork]] = {}
    for cell in wanted:
        key = (cell.track, cell.backbone.name, cell.dataset.name, cell.evaluate_on, cell.shots, cell.method)
        if key not in of_work:  # cells that differ in their seed take the same work
            of_work[key] = cell_gflops(cell, plan.catalog), _cell_host_work(cell, plan.catalog)
        counted, beside = of_work[key]
        uncounted += not counted
        gflops[cell.backbone.name] += counted
        host += beside + _sources_host_work(cell, plan.catalog, prepared)
    for spec in required_artifacts(wanted, plan.cells, plan.catalog, plan.sources):
        if spec in missing:
            host += spec.host_work(plan.catalog)
            if (backbone := getattr(spec, "backbone", None)) is not None:
                gflops[backbone.name] += spec.gflops(plan.catalog)
    return Workload(len(wanted), uncounted, gflops, host)


def _cell_host_work(cell: Cell, catalog: Catalog) -> HostWork:
    """What a CPU core does for a cell whose views are made on a GPU, beside preparing its sources."""
    method, settings = configured_method(cell)
    backbone, entry = catalog.backbone(cell.backbone.name), catalog.dataset(cell.dataset.name)
    passes = TRACKS[cell.track].tower_passes(method, settings, cell.shots * entry.classes, entry.sizes.test)
    batch = getattr(settings, "batch_size", _BATCH_SIZE)
    work = views_on_device(passes.training + passes.forward)
    work += launches(backbone.layers, math.ceil(passes.training / batch), math.ceil(passes.forward / SCORING_BATCH))
    if passes.text_training:
        steps = passes.text_training * math.ceil(entry.classes / PROMPTS_AT_ONCE)
        work += launches(text_sizes(backbone).layers, steps, 0)
    scored = images_scored(cell, catalog)
    return work + test_images_read(scored) + launches(backbone.layers, 0, scored / SCORING_BATCH)


def _sources_host_work(cell: Cell, catalog: Catalog, prepared: set[Hashable]) -> HostWork:
    """Reading the cell's sources, or making bases of them, unless a cell with the same sources has done it."""
    method, settings = configured_method(cell)
    if not (cell.sources and method.uses_source_models):
        return HostWork()
    backbone, count = catalog.backbone(cell.backbone.name), len(cell.sources)
    directions = method.source_directions(settings, backbone.width, count)
    key = (cell.backbone, cell.sources, directions)
    if key in prepared:
        return HostWork()
    prepared.add(key)
    each_number = BASIS_PER_NUMBER if directions else READ_PER_NUMBER
    return HostWork(sources=each_number * count * backbone.parameters)


def gpu_seconds(work: Workload, catalog: Catalog, gpu: GpuKind, precision: Precision) -> float:
    """Seconds of the counted operations on one GPU in one of its precisions."""
    return sum(
        gflop / (1e3 * sustained_tflops(gpu, precision, catalog.backbone(name).gflops_per_image))
        for name, gflop in work.gflops.items()
    )


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
    numbers = ("cells", "EFLOP", *(f"{name} h" for name in gpu.peaks), "CPU core-h")
    table = plain_table("", *numbers, right=numbers)
    lines = []
    for title, work in parts:
        seconds = {precision: gpu_seconds(work, plan.catalog, gpu, precision) for precision in gpu.peaks}
        hours = [f"{value / HOUR:,.1f}" for value in seconds.values()]
        exaflop = f"{sum(work.gflops.values()) / 1e9:,.2f}"
        table.add_row(title, f"{work.cells:,}", exaflop, *hours, f"{work.host.seconds / HOUR:,.1f}")
        host = ", ".join(f"{part} {value / HOUR:,.1f}" for part, value in asdict(work.host).items())
        lines.append(f"{title}: CPU core-hours of {host}; {_binding_line(work, seconds)}")
        if work.uncounted:
            lines.append(f"  {work.uncounted:,} of the cells train on cached features alone; their time is not counted")
    rests_on = (
        f"rests on: operations counted for each method and tower; {gpu.source}; assumed shares of those peaks that "
        f"towers sustain; CPU work as measured on one server core. Nothing was measured on this GPU"
    )
    heading = Text(f"hours on one {gpu.title}, artifacts included", style="bold")
    return Group(heading, table, *map(Text, lines), Text(rests_on, style="dim"))


def _binding_line(work: Workload, seconds: dict[Precision, float]) -> str:
    """Whether the GPU or the CPU cores beside it are the limit, for each precision."""
    needed = {precision: cores_needed(work, value) for precision, value in seconds.items()}
    if min(needed.values()) > _MANY_CORES:
        return "the CPU is the limit: the towers are too small to keep this GPU busy"
    listed = ", ".join(f"{cores} ({precision})" for precision, cores in needed.items())
    return f"the GPU is the limit, not the CPU, with at least {listed} free cores for each GPU"
