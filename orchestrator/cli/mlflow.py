"""``sync`` and ``ui``: make the runs in MLflow equal to the results, and serve MLflow's web interface."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from orchestrator.cli.options import DEFAULT_STORE, CatalogFiles, DataRoot, GridName, StoreUrl, store_url
from orchestrator.cli.workspace import open_workspace

if TYPE_CHECKING:
    from orchestrator.store import Store
    from orchestrator.tracking.location import TrackingLocation


def sync(
    grid: GridName,
    store: StoreUrl = DEFAULT_STORE,
    data_root: DataRoot = None,
    catalog: CatalogFiles = None,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="set the store's own MLflow database aside and make it anew")
    ] = False,
) -> None:
    """Make the runs in MLflow equal to the results.

    Missing runs are added, leftovers and duplicates are removed. It cannot run while the grid runs.
    """
    from orchestrator.cli.mlflow_sync import sync_grid
    from orchestrator.cli.session import hold_grid
    from orchestrator.report.grid_report import write_grid_report
    from orchestrator.tracking.location import tracking_location

    workspace, console = open_workspace(grid, store, data_root, catalog), Console()
    place = tracking_location(workspace.store)
    with hold_grid(workspace, console):
        plan = workspace.plan()
        report = write_grid_report(plan, workspace.catalog, workspace.store)
        if rebuild:
            _set_database_aside(place, console)
        outcome = sync_grid(plan, workspace, report, verify=True, console=console)
    console.print(outcome.message, highlight=False, soft_wrap=True)
    raise typer.Exit(0 if outcome.complete else 1)


def ui(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="open this grid's experiment")] = None,
    store: StoreUrl = DEFAULT_STORE,
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000,
) -> None:
    """Serve MLflow's web interface for a store.

    It listens on this machine's loopback address only.
    """
    from orchestrator.store import Store

    raise typer.Exit(_serve_ui(Store(store_url(store)), grid, port, Console()))


def _serve_ui(store: Store, grid: str | None, port: int, console: Console) -> int:
    """Print links and serve MLflow's interface until Ctrl-C; returns the server's exit code.

    If the runs are tracked on a server, it only prints the links. Raises ``UserError`` if nothing is tracked yet or the
    port is taken.
    """
    from orchestrator.tracking.location import tracking_location
    from orchestrator.tracking.ui import HOST, serve_ui
    from orchestrator.util.errors import UserError

    place = tracking_location(store)
    if place.database is not None and not place.database.is_file():
        raise UserError(
            f"nothing is tracked in {store.url} yet", hint="run a grid first: python -m orchestrator grid demo"
        )
    if place.server is not None:
        console.print(f"MLflow is served at {place.server}", highlight=False, soft_wrap=True)
        _print_links(place.uri, grid, place.server, console)
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if probe.connect_ex((HOST, port)) == 0:
            raise UserError(
                f"port {port} is taken on this machine", where="--port", hint="give another, e.g. --port 5001"
            )
    base = f"http://{HOST}:{port}"
    console.print(f"MLflow at {base} until Ctrl-C", highlight=False, soft_wrap=True)
    _print_links(place.uri, grid, base, console)
    return serve_ui(place.uri, place.artifacts, port)


def _print_links(uri: str, grid: str | None, base: str, console: Console) -> None:
    from orchestrator.tracking.errors import classify_tracking_error
    from orchestrator.tracking.views import ui_links
    from orchestrator.util.errors import UserError

    if grid is None:
        return
    try:
        found = ui_links(uri, grid, base)
    except Exception as error:  # of MLflow, requests or a database
        trouble = classify_tracking_error(error)
        if trouble.kind == "other":
            raise
        raise UserError(trouble.message, where=uri) from None
    for shows, link in found.items():
        console.print(f"  {shows}: {link}", highlight=False, soft_wrap=True, markup=False)


def _set_database_aside(place: TrackingLocation, console: Console) -> None:
    """Move a store's own MLflow database aside, so that the sync writes a new one.

    Raises ``UserError`` for the database of a tracking server.
    """
    from orchestrator.tracking.client import move_aside
    from orchestrator.util.errors import UserError

    if place.database is None:
        raise UserError(
            f"{place.uri} holds the runs of others too",
            where="--rebuild",
            hint="--rebuild is for a store's own database; docs/tracking-server.md says how to restore a server's",
        )
    if (aside := move_aside(place.database)) is not None:
        console.print(f"MLflow: the old database is {aside}", highlight=False, soft_wrap=True)
        console.print(
            "  run `sync` for the other grids of this store, and `export --register` again for registered models",
            highlight=False,
            soft_wrap=True,
        )
