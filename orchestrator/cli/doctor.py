"""``doctor``: show what this machine has, and which inputs of a grid are missing."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.cli.options import AsJson, StoreSettings, print_json, with_options
from orchestrator.cli.workspace import Workspace, open_workspace
from orchestrator.util.atomic_files import nearest_existing
from orchestrator.util.console import Console
from orchestrator.util.errors import UserError
from orchestrator.util.units import human_bytes, pluralize

PACKAGES = ("torch", "torchvision", "open_clip_torch", "ray", "mlflow", "scikit-learn", "pandas", "matplotlib")


def machine(store_url: str) -> dict[str, str]:
    """Return name -> a line about Python, packages, processors, memory, accelerators and the store."""
    import psutil

    from orchestrator.util.machine import usable_processors

    return {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "packages": ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
        "processors": f"{os.cpu_count()} logical, {usable_processors()} usable",
        "memory": human_bytes(psutil.virtual_memory().total),
        "accelerators": _accelerators(),
        "store": _store_line(store_url),
    }


@dataclass(frozen=True)
class Needs:
    """The inputs and the disk space that a grid needs on this machine.

    Attributes:
        states: backbone, dataset or checkpoint -> ``there``, the error if it is missing, or a text that says that
            ``grid`` will fetch it.
        cells: number of cells to do.
        needed: bytes of the artifacts to build.
        free: free bytes on the store's disk; ``None`` for a remote store.
    """

    states: dict[str, UserError | str]
    cells: int
    needed: int
    free: int | None

    @property
    def fits(self) -> bool:
        """Whether the artifacts fit on the store's disk."""
        return self.free is None or self.needed <= self.free

    @property
    def ready(self) -> bool:
        """Whether the grid can run here."""
        return self.fits and not any(isinstance(state, UserError) for state in self.states.values())

    def record(self) -> dict[str, Any]:
        """Return the fields that ``doctor --json`` prints about the grid."""
        space = {"cells_to_do": self.cells, "bytes_to_build": self.needed, "bytes_free": self.free}
        return {"ready": self.ready, "needs": {name: str(state) for name, state in self.states.items()}, **space}


def needs_of(workspace: Workspace) -> Needs:
    """Return the state of the grid's backbones, datasets and checkpoints, and the space that its artifacts need."""
    from orchestrator.artifacts.load_backbone import has_weights
    from orchestrator.catalog import missing_checkpoint, missing_data, missing_weights
    from orchestrator.catalog.text_sizes import download_bytes
    from orchestrator.planning.checks import bytes_to_build, free_bytes

    grid, root = workspace.grid, workspace.settings.data_folder
    states: dict[str, UserError | str] = {}
    for name, entry in sorted(grid.backbones.items()):
        state = missing_weights(entry) or "there"
        if state == "there" and not has_weights(entry):
            state = f"not on this machine: `grid` fetches the weights, about {human_bytes(download_bytes(entry))}"
        states[f"backbone {name}"] = state
    for name, dataset in sorted(grid.datasets.items()):
        states[f"dataset {name}"] = missing_data(dataset, root) or "there"
    for checkpoint in grid.adopted_checkpoints:
        name = f"checkpoint of {checkpoint.dataset} for {checkpoint.backbone}"
        states[name] = missing_checkpoint(checkpoint) or "there"
    plan = workspace.plan()
    return Needs(states, len(plan.todo), bytes_to_build(plan), free_bytes(workspace.store))


def needs_view(workspace: Workspace, needs: Needs) -> RenderableType:
    """Return a table with the state of the grid's backbones, datasets and checkpoints."""
    grid, table = workspace.grid, Table("needs", "state", box=None, pad_edge=False, header_style="bold")
    for name, state in needs.states.items():
        entry = grid.backbones.get(name.removeprefix("backbone "))
        name += "" if entry is None or entry.has_matrices else ", features only"
        table.add_row(name, Text(str(state), "" if state == "there" else "yellow", overflow="fold"))  # cuts no address
    summary = Text(f"{pluralize(needs.cells, 'cell')} to do, {human_bytes(needs.needed)} of artifacts to build")
    if not needs.fits:
        summary = Text(f"{summary}, but the store's disk has only {human_bytes(needs.free or 0)} free", "red")
    return Group(Text(f"\n{grid.name}: {grid.title}", "bold"), table, summary)


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
    if store.files.is_local and not Path(store.files.root).exists():  # do not make the folder by writing into it
        above = nearest_existing(Path(store.files.root))
        if not os.access(above, os.W_OK):
            return f"{url} cannot be made in {above}"
        return f"{url}, will be made by the first run, {human_bytes(free_bytes(store) or 0)} free"
    try:
        store.files.write("doctor.txt", b"written by `doctor`\n")
        store.files.remove("doctor.txt")
    except (OSError, UserError) as error:
        return f"{url} cannot be written to: {error}"
    free = free_bytes(store)
    return url if free is None else f"{url}, {human_bytes(free)} free"


@with_options
def doctor(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="also show what this grid needs")] = None,
    as_json: AsJson = False,
    *,
    settings: StoreSettings,
) -> None:
    """Show what this machine has, and what a grid needs.

    The exit code is 1 if the grid cannot run here.
    """
    here = machine(settings.store_url)
    workspace = None if grid is None else open_workspace(grid, settings)
    needs = None if workspace is None else needs_of(workspace)
    if as_json:
        print_json({"machine": here, "grid": None if needs is None else {"name": grid, **needs.record()}})
    else:
        table = Table("", "", box=None, show_header=False, pad_edge=False)
        table.columns[0].style = "bold"
        for name, value in here.items():
            table.add_row(name, value)
        Console().print(table)
        if workspace is not None and needs is not None:
            Console().print(needs_view(workspace, needs))
    raise typer.Exit(0 if needs is None or needs.ready else 1)
