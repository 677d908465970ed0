"""``doctor``: show what this machine has, and which inputs of a grid are missing."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.options import StoreSettings, with_settings
from orchestrator.cli.workspace import Workspace, open_workspace
from orchestrator.util.atomic_files import nearest_existing
from orchestrator.util.console import Console
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes, pluralize

PACKAGES = ("torch", "torchvision", "open_clip_torch", "ray", "mlflow", "scikit-learn", "pandas", "matplotlib")


def machine_view(store_url: str) -> RenderableType:
    """Python, packages, processors, memory, accelerators, and whether the store can be written to."""
    import psutil

    from orchestrator.util.machine import usable_processors

    table = Table("", "", box=None, show_header=False, pad_edge=False)
    table.columns[0].style = "bold"
    table.add_row("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    table.add_row("packages", ", ".join(f"{name} {_version(name)}" for name in PACKAGES))
    table.add_row("processors", f"{os.cpu_count()} logical, {usable_processors()} usable")
    table.add_row("memory", human_bytes(psutil.virtual_memory().total))
    table.add_row("accelerators", _accelerators())
    table.add_row("store", _store_line(store_url))
    return table


def needs_view(workspace: Workspace) -> tuple[RenderableType, bool]:
    """Return a table of the grid's backbones, datasets and checkpoints with what is missing.

    The second value says whether the grid can run.
    """
    from orchestrator.artifacts.load_backbone import has_weights
    from orchestrator.catalog import missing_checkpoint, missing_data, missing_weights
    from orchestrator.catalog.text_sizes import download_bytes
    from orchestrator.planning.checks import bytes_to_build, free_bytes

    grid, root = workspace.grid, workspace.settings.data_folder
    problems = {f"backbone {name}": missing_weights(entry) for name, entry in sorted(grid.backbones.items())}
    problems |= {f"dataset {name}": missing_data(entry, root) for name, entry in sorted(grid.datasets.items())}
    for entry in grid.adopted_checkpoints:
        problems[f"checkpoint of {entry.dataset} for {entry.backbone}"] = missing_checkpoint(entry)
    table = Table("needs", "state", box=None, pad_edge=False, header_style="bold")
    fetched = {
        f"backbone {name}": f"its weights are not here: `grid` fetches them, about {human_bytes(download_bytes(entry))}"
        for name, entry in grid.backbones.items()
        if missing_weights(entry) is None and not has_weights(entry)
    }
    for name, problem in problems.items():
        state = str(problem) if problem is not None else fetched.get(name, "there")
        table.add_row(name, Text(state, "" if state == "there" else "yellow"))
    plan = workspace.plan()
    needed, free = bytes_to_build(plan), free_bytes(workspace.store)
    fits = free is None or needed <= free
    summary = Text(f"{pluralize(len(plan.todo), 'cell')} to do, {human_bytes(needed)} of artifacts to build")
    if not fits:
        summary = Text(f"{summary}, but the store's disk has only {human_bytes(free or 0)} free", "red")
    ready = fits and not any(problems.values())
    return Group(Text(f"\n{grid.name}: {grid.title}", "bold"), table, summary), ready


def _version(package: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "missing"


def _accelerators() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none; cells run on the CPU"
    names = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return ", ".join(f"{card.name} ({human_bytes(card.total_memory)})" for card in names)


def _store_line(url: str) -> str:
    from orchestrator.planning.checks import free_bytes
    from orchestrator.store import Store

    store = Store(url)
    if store.files.is_local and not Path(store.files.root).exists():  # it is not made just to be looked at
        above = nearest_existing(Path(store.files.root))
        if not os.access(above, os.W_OK):
            return f"{url} cannot be made in {above}"
        return f"{url}, made by the first run, {human_bytes(free_bytes(store) or 0)} free"
    try:
        store.files.write("doctor.txt", b"written by `doctor`\n")
        store.files.remove("doctor.txt")
    except (OSError, UserError) as error:
        return f"{url} cannot be written to: {error}"
    free = free_bytes(store)
    return url if free is None else f"{url}, {human_bytes(free)} free"


@with_settings
def doctor(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="say what this grid would need")] = None,
    *,
    settings: StoreSettings,
) -> None:
    """Show what this machine has, and what a grid needs.

    Exit code 1 if the grid cannot run here.
    """
    console = Console()
    console.print(machine_view(settings.store_url))
    if grid is not None:
        view, ready = needs_view(open_workspace(grid, settings))
        console.print(view)
        raise typer.Exit(0 if ready else 1)
