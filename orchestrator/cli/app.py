"""The command line: imports and registers every command, in two lines each.

A command is a function in a file of this folder. It gathers its inputs, calls one function that does the work, and
prints the result (docs/adding-a-command.md).
"""

import difflib
import os
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from bolt.model.command import predict
from orchestrator import __version__
from orchestrator.cli import (
    adapt,
    backbones,
    bundle,
    cells,
    data,
    doctor,
    export,
    grid,
    inspect,
    merge,
    mlflow,
    report,
    sources,
    status,
)
from orchestrator.cli.options import PROJECT_FILE, at_home
from orchestrator.util.interrupt import EXIT_CODE, STOPPED

VARIABLES = ("STORE", "DATA", "CACHE", "CACHE_SIZE", "TRACKING_ARTIFACTS", "TRACKING_SERVER")
"""The environment variables of the project, without their prefix ``BOLT_``."""


class Commands(TyperGroup):
    """All commands. They replace ``~`` by the home folder where a shell does not, as in ``--output=~/model``."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # Typer would end the command without a word
            typer.echo(STOPPED, err=True)
            raise typer.Exit(EXIT_CODE) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [at_home(word) for word in args])


app = typer.Typer(
    cls=Commands, add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    """Measure CLIP adaptation methods on a grid of backbone x dataset x k x method cells."""
    known = [f"BOLT_{name}" for name in VARIABLES]
    for name in (name for name in os.environ if name.startswith("BOLT_") and name not in known):
        for near in difflib.get_close_matches(name, known, n=1, cutoff=0.77):
            typer.echo(f"note: no command reads {name}; did you mean {near}?", err=True)
    if PROJECT_FILE.is_file():
        from orchestrator.cli.project import set_defaults

        set_defaults(context)


app.command("adapt", cls=adapt.AdaptCommand)(adapt.adapt)
app.command("predict")(predict)
app.command("grid")(grid.grid)
app.command("plan")(grid.plan)
app.command("status")(status.status)
app.command("cells")(cells.cells)
app.command("report")(report.report)
app.command("results")(report.results)
app.command("merge")(merge.merge)
app.command("sync")(mlflow.sync)
app.command("ui")(mlflow.ui)
app.command("doctor")(doctor.doctor)
app.command("export")(export.export)
app.command("inspect")(inspect.inspect)

app.add_typer(data.app, name="data")
app.add_typer(sources.app, name="sources")
app.add_typer(backbones.app, name="backbones")
app.add_typer(bundle.app, name="bundle")

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
