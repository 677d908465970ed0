"""The commands. Each gathers its inputs, calls one function that does the work, and says what came of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli import backbones, data, sources, tracking
from orchestrator.cli.export import export
from orchestrator.cli.inspect import inspect
from orchestrator.cli.options import (
    DEFAULT_STORE,
    CatalogFiles,
    DataRoot,
    Device,
    StoreUrl,
    Threads,
    run_settings,
    store_url,
)

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.core.settings import RunSettings
    from orchestrator.grid import Grid
    from orchestrator.store import Store

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure CLIP adaptation methods: plan, run, resume and report every backbone x dataset x k x method cell.",
)
app.add_typer(data.app, name="data")
app.add_typer(sources.app, name="sources")
app.add_typer(backbones.app, name="backbones")
app.add_typer(tracking.app, name="tracking")

GridName = Annotated[str, typer.Argument(metavar="GRID", help="a grid's name (grids/NAME.yaml) or a path to one")]
Only = Annotated[
    list[str] | None, typer.Option("--only", metavar="FIELD=A,B", help="keep cells that match; may be repeated")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="override a grid's value; may be repeated")
]
Limit = Annotated[int | None, typer.Option("--limit", min=1, help="only the first N cells")]
DiskBudget = Annotated[
    str | None, typer.Option("--disk-budget", metavar="SIZE", help="what the artifacts may take, e.g. 200GB")
]
GpuMemory = Annotated[
    str | None,
    typer.Option("--gpu-memory", metavar="SIZE", help="show how GPUs of that size would be packed, e.g. 40GiB"),
]
Retry = Annotated[bool, typer.Option("--retry-failed", help="run cells again that are on record as failed")]


@dataclass(frozen=True)
class Opened:
    """What most commands start from."""

    grid: Grid
    catalog: Catalog
    store: Store
    settings: RunSettings
    data_root: Path | None


def _open(
    grid: str,
    store: str,
    data_root: Path | None,
    catalog: list[Path] | None,
    only: list[str] | None = None,
    set_: list[str] | None = None,
    limit: int | None = None,
    threads: int = 1,
    device: str | None = None,
) -> Opened:
    from orchestrator.catalog import data_root_of, load_catalog
    from orchestrator.grid import load_grid
    from orchestrator.store import Store

    root = data_root_of(data_root)
    loaded = load_catalog(catalog or ())
    settings = run_settings(store, data_root, catalog, threads, device)
    parsed = load_grid(grid, loaded, only=only or (), set_=set_ or (), limit=limit, data_root=root)
    return Opened(parsed, loaded, Store(settings.store_url), settings, root)


@app.command("grid")
def run_a_grid(
    grid: GridName,
    store: StoreUrl = DEFAULT_STORE,
    only: Only = None,
    set_: Set = None,
    limit: Limit = None,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    plan: Annotated[bool, typer.Option("--plan", help="say what would be done, and do nothing")] = False,
    local: Annotated[bool, typer.Option("--local", help="in this process, one cell after the other, no Ray")] = False,
    address: Annotated[str | None, typer.Option("--address", help="a running Ray cluster: auto or HOST:PORT")] = None,
    retry_failed: Retry = False,
    disk_budget: DiskBudget = None,
    cell_limit: Annotated[
        str | None,
        typer.Option("--cell-limit", metavar="DURATION", help="end a cell that runs longer, e.g. 90min; 0: never; 6h"),
    ] = None,
    gpu_memory: GpuMemory = None,
    threads: Threads = 1,
    device: Device = None,
) -> None:
    """Plan a grid, build what is missing, run what is missing, report. The same command resumes."""
    from orchestrator.cli.session import run_session
    from orchestrator.execution.run import CELL_LIMIT_SECONDS, RunOptions
    from orchestrator.planning.disk import parse_bytes
    from orchestrator.util.errors import UserError
    from orchestrator.util.units import seconds_of

    if local and address:
        raise UserError("--local and --address exclude each other", hint="give one of them")
    if local and cell_limit:
        raise UserError("--local cannot end a cell, so it takes no --cell-limit", hint="give one of them")
    budget = parse_bytes(disk_budget) if disk_budget else None
    longest = seconds_of(cell_limit, "--cell-limit") if cell_limit else CELL_LIMIT_SECONDS
    opened = _open(grid, store, data_root, catalog, only, set_, limit, threads, device)
    if plan:
        _print_plan(opened, retry_failed, budget, gpu_memory)
        return
    options = RunOptions(local, address, retry_failed, budget, longest)
    code = run_session(opened.grid, opened.catalog, opened.store, opened.settings, options, Console())
    raise typer.Exit(code)


@app.command("plan")
def plan_a_grid(
    grid: GridName,
    store: StoreUrl = DEFAULT_STORE,
    only: Only = None,
    set_: Set = None,
    limit: Limit = None,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    retry_failed: Retry = False,
    disk_budget: DiskBudget = None,
    gpu_memory: GpuMemory = None,
) -> None:
    """Say what a grid holds, what is done and what it would take. Nothing runs."""
    from orchestrator.planning.disk import parse_bytes

    budget = parse_bytes(disk_budget) if disk_budget else None
    _print_plan(_open(grid, store, data_root, catalog, only, set_, limit), retry_failed, budget, gpu_memory)


def _print_plan(opened: Opened, retry_failed: bool, disk_budget: int | None, gpu_memory: str | None) -> None:
    from orchestrator.planning.plan import make_plan
    from orchestrator.planning.plan_view import plan_view
    from orchestrator.util.units import bytes_of

    made = make_plan(opened.grid, opened.catalog, opened.store, opened.data_root, retry_failed=retry_failed)
    gpu = bytes_of(gpu_memory, "--gpu-memory") if gpu_memory else None
    Console().print(plan_view(made, opened.catalog, opened.store, opened.data_root, disk_budget, gpu))


@app.command()
def status(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="a grid's name or a path to one")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="keep showing a run's picture until it ends")] = False,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
) -> None:
    """Say how far a grid is: what its run shows, done, failed and open cells; without a grid, every run of a store."""
    from orchestrator.planning.plan import make_plan
    from orchestrator.progress.status_view import status_view, store_view
    from orchestrator.progress.status_view import watch as watch_run
    from orchestrator.store import Store
    from orchestrator.util.errors import UserError

    here = Store(store_url(store))
    if grid is None:
        if watch:
            raise UserError("--watch takes a grid", hint="e.g. status demo --watch")
        Console().print(store_view(here))
        return
    if watch:
        watch_run(here, Path(grid).stem, Console())
        return
    opened = _open(grid, store, data_root, catalog)
    made = make_plan(opened.grid, opened.catalog, opened.store, opened.data_root)
    Console().print(status_view(made, opened.store))


@app.command()
def report(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="a grid's name or a path to one")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="the paper's tables alone; needs no grid and no store")
    ] = False,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="folder for them; ./published")] = None,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
) -> None:
    """Write a grid's report anew from the results there are, or the paper's tables by themselves."""
    from orchestrator.util.errors import UserError

    if published == (grid is not None):
        raise UserError("report takes a grid, or --published", hint="e.g. report demo, or report --published")
    if output is not None and not published:
        raise UserError("a grid's report lies in its store", where="--output", hint="leave it out, or give --published")
    if grid is None:
        from orchestrator.report.paper.published_page import write_published

        Console().print(f"published: {write_published(output or Path('published'))}", soft_wrap=True, highlight=False)
        return
    from orchestrator.cli.session import where_report_lies, write_grid_report
    from orchestrator.planning.plan import make_plan

    opened = _open(grid, store, data_root, catalog)
    made = make_plan(opened.grid, opened.catalog, opened.store, opened.data_root)
    files = write_grid_report(made, opened.catalog, opened.store, opened.data_root)
    where = where_report_lies(files, opened.grid.name, opened.store)
    Console().print(f"report: {where}", soft_wrap=True, highlight=False)


@app.command()
def sync(
    grid: GridName,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="set the store's own MLflow database aside and make it anew")
    ] = False,
) -> None:
    """Bring MLflow to what the results say: add missing runs, remove leftovers and doubles. Not while the grid runs."""
    from orchestrator.cli.session import alone, sync_tracking, write_grid_report
    from orchestrator.cli.tracking import set_database_aside
    from orchestrator.planning.plan import make_plan
    from orchestrator.tracking.place import tracking_place

    opened, console = _open(grid, store, data_root, catalog), Console()
    place = tracking_place(opened.store)
    with alone(opened.store, opened.grid.name, console):
        made = make_plan(opened.grid, opened.catalog, opened.store, opened.data_root)
        files = write_grid_report(made, opened.catalog, opened.store, opened.data_root)
        if rebuild:
            set_database_aside(place, console)
        tracked = sync_tracking(made, opened.catalog, opened.store, files, verify=True, console=console)
    console.print(tracked.line, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if tracked.whole else 1)


@app.command()
def ui(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="open this grid's experiment")] = None,
    store: StoreUrl = DEFAULT_STORE,
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000,
) -> None:
    """Serve the MLflow UI of a store on this machine's loopback address."""
    from orchestrator.cli.session import serve_tracking_ui
    from orchestrator.store import Store

    raise typer.Exit(serve_tracking_ui(Store(store_url(store)), grid, port, Console()))


@app.command()
def doctor(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="say what this grid would need")] = None,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
) -> None:
    """Say what this machine has, and, with a grid, what it lacks for it."""
    from orchestrator.cli.doctor import machine_view, needs_view

    console = Console()
    console.print(machine_view(store))
    if grid is not None:
        opened = _open(grid, store, data_root, catalog)
        view, ready = needs_view(opened.grid, opened.catalog, opened.store, opened.data_root)
        console.print(view)
        raise typer.Exit(0 if ready else 1)


app.command("export")(export)
app.command("inspect")(inspect)

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
