"""What ``plan`` prints."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.catalog import Catalog, missing_checkpoint, missing_data, missing_weights
from orchestrator.disk import check_room, room_line
from orchestrator.errors import UserError
from orchestrator.plan import Plan, count_by_kind
from orchestrator.store import Store
from orchestrator.units import human_bytes

ARTIFACT_WORDS = {
    "Images": "decoded image splits",
    "SupportImages": "support images",
    "Head": "zero-shot heads",
    "TestFeatures": "test features",
    "SupportFeatures": "support features",
    "SourceModel": "source models",
    "AdoptedSource": "adopted checkpoints",
    "SourceDirections": "source directions",
    "DomainTotal": "domain totals",
    "MetaStart": "meta-learned starts",
}

SHOWN_MISSING = 6


def plan_view(
    plan: Plan, catalog: Catalog, store: Store, data_root: Path | None, disk_budget: int | None = None
) -> RenderableType:
    """Cells per track, backbone and method; artifacts with sizes and the room for them; the estimate, its grounds."""
    grid = plan.grid
    parts: list[RenderableType] = [Text(f"{grid.name}: {grid.title}", style="bold"), Text(counts_line(plan))]
    parts += [Text(), _cell_table(plan), Text(), _artifact_table(plan)]
    parts += [Text(room_line(plan, store)), Text(), Text(estimate_line(plan))]
    try:
        check_room(plan, store, disk_budget)
    except UserError as error:
        parts.append(Text(f"\n{error}", style="yellow"))
    absent = _absent(plan, catalog, data_root)
    if absent:
        shown = ", ".join(absent[:SHOWN_MISSING]) + (
            f" and {len(absent) - SHOWN_MISSING} more" * (len(absent) > SHOWN_MISSING)
        )
        parts.append(Text(f"\nnot on this machine: {shown}", style="yellow"))
        parts.append(Text(f"`doctor {grid.name}` says how to get each"))
    parts.append(Text(f"\nstore: {store.url}"))
    return Group(*parts)


def status_path(store: Store, grid: str) -> Path | None:
    """Where a run says how far it is; only a local store has such a place."""
    return store.files.local_path(f"status/{grid}.json") if store.files.is_local else None


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
    return f"estimate: {plan.estimate.words}"


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
    for kind, (every, todo, size) in count_by_kind(plan).items():
        total += size
        table.add_row(ARTIFACT_WORDS[kind], str(every), str(todo), human_bytes(size) if todo else "-")
    table.add_row("total", "", "", human_bytes(total), style="dim")
    return table


def _absent(plan: Plan, catalog: Catalog, data_root: Path | None) -> list[str]:
    """Names of the backbones and datasets that are not here."""
    datasets = {ref.name for cell in plan.todo for ref in (cell.dataset, *cell.evaluate_on)}
    sources = {source for cell in plan.todo for source in cell.sources}
    datasets |= {source.dataset for source in sources if source not in plan.grid.adopted}
    checkpoints = [entry for source, entry in plan.grid.adopted.items() if source in sources]
    absent = [name for name in sorted({c.backbone.name for c in plan.todo}) if missing_weights(catalog.backbone(name))]
    absent += [name for name in sorted(datasets) if missing_data(catalog.dataset(name), data_root)]
    return absent + [f"checkpoint of {entry.dataset}" for entry in checkpoints if missing_checkpoint(entry)]
