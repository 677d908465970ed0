"""``sync`` and ``ui``: make the runs in MLflow equal to the results, and serve MLflow's web interface."""

import os
from functools import partial
from typing import Annotated

import typer

from orchestrator.cli.options import DEFAULT_STORE, Metric, StoreUrl, with_options
from orchestrator.cli.workspace import ResultsWorkspace
from orchestrator.util.console import Console, print_line
from orchestrator.util.errors import UserError


@with_options
def sync(
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="set the store's own MLflow database aside and make a new one")
    ] = False,
    metric: Metric = None,
    *,
    workspace: ResultsWorkspace,
) -> None:
    """Make the runs in MLflow equal to the results.

    Missing runs are added. Runs without a result and duplicate runs are removed. The command cannot run while the grid
    runs.
    """
    from orchestrator.report.grid_report import read_finished_results, write_grid_report
    from orchestrator.store.lease import grid_lease
    from orchestrator.tracking.client import move_aside
    from orchestrator.tracking.grid_runs import GridRuns
    from orchestrator.tracking.location import URI_VARIABLE

    runs = GridRuns(workspace.grid, workspace.catalog, workspace.store)
    database = runs.location.database if rebuild else None
    if rebuild and (database is None or os.environ.get(URI_VARIABLE)):
        hint = "--rebuild is for a store's own database; docs/tracking-server.md says how to restore a server"
        raise UserError(f"{runs.location.uri} may hold runs of other stores", where="--rebuild", hint=hint)
    with grid_lease(workspace.store.files, workspace.grid.name, partial(print_line, style="yellow")):
        grid_results = read_finished_results(workspace.results_plan(metric), workspace.store)
        page = write_grid_report(grid_results, workspace.store, metric)
        if database is not None and (aside := move_aside(database)) is not None:
            print_line(f"MLflow: the old database was moved to {aside}")
            also = "run `sync` for the other grids of this store, and `export --register` again for registered models"
            print_line(f"  {also}")
        complete, line = runs.sync(grid_results, page.parent, Console(), verify=True)
    print_line(line)
    raise typer.Exit(0 if complete else 1)


def ui(
    grid: Annotated[str | None, typer.Argument(metavar="[GRID]", help="open this grid's experiment")] = None,
    store: StoreUrl = DEFAULT_STORE,
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000,
) -> None:
    """Serve MLflow's web interface for a store.

    The server listens on this machine's loopback address only.
    """
    from orchestrator.store import Store
    from orchestrator.tracking.errors import classify_tracking_error
    from orchestrator.tracking.location import tracking_location
    from orchestrator.tracking.ui import HOST, check_port, serve_ui, ui_links

    place = tracking_location(Store(store))
    if place.database is not None and not place.database.is_file():
        raise UserError(f"nothing is tracked in {store} yet", hint="run a grid first: python -m orchestrator grid demo")
    if place.server is not None:
        base = place.server
        print_line(f"MLflow is served at {base}")
    else:
        check_port(port)
        base = f"http://{HOST}:{port}"
        print_line(f"MLflow at {base} until Ctrl-C")
    if grid is not None:
        try:
            links = ui_links(place.uri, grid, base)
        except Exception as error:  # an error of MLflow, requests or a database
            problem = classify_tracking_error(error)
            if problem.kind == "other":
                raise
            raise UserError(problem.message, where=place.uri) from None
        width = max(map(len, links))
        for shows, link in links.items():
            print_line(f"  {shows:{width}}  {link}")
    if place.server is None:
        raise typer.Exit(serve_ui(place, port))
