"""``tracking``: the tracking server of a cluster's head, and what a driver needs to write to it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Serve MLflow on PostgreSQL, for many users.")

DEFAULT_FOLDER = Path("~/.bolt/tracking")

Folder = Annotated[Path, typer.Option("--folder", envvar="BOLT_TRACKING", help="keeps database, secrets and logs")]


@app.command()
def serve(
    folder: Folder = DEFAULT_FOLDER,
    artifacts: Annotated[
        str | None, typer.Option("--artifacts", metavar="URL", help="folder or s3://... of the runs' artifacts")
    ] = None,
    database: Annotated[
        str | None,
        typer.Option("--database", metavar="URL", help="a PostgreSQL that runs already: postgresql://USER@HOST/NAME"),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="address to listen on; 0.0.0.0 for all of this machine's")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=1, max=65535)] = 5000,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="what else this machine is called in addresses; may be repeated")
    ] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="ask for no password; on loopback only")] = False,
) -> None:
    """Serve MLflow, with users and passwords, on a PostgreSQL of its own, until Ctrl-C. What dies is started again."""
    from orchestrator.tracking.mlflow_server import Serving
    from orchestrator.tracking.server import serve as serve_until_stopped

    console = Console()
    serving = Serving(_absolute(folder), artifacts, database, host, port, not no_auth, tuple(name or ()))
    code = serve_until_stopped(serving, lambda line: console.print(line, highlight=False, soft_wrap=True, markup=False))
    raise typer.Exit(code)


@app.command()
def env(
    folder: Folder = DEFAULT_FOLDER,
    http: Annotated[
        bool, typer.Option("--http", help="through the server instead of straight to the database")
    ] = False,
) -> None:
    """Print what a driver on this machine needs to track there: eval "$(python -m orchestrator tracking env)"."""
    from orchestrator.tracking.server import driver_environment

    typer.echo(driver_environment(_absolute(folder), http=http), nl=False)


def _absolute(folder: Path) -> Path:
    return folder.expanduser().absolute()
