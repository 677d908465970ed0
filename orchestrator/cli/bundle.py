"""``bundle``: write the results behind a grid's tables into one file, check such a file, or measure its cells again."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from orchestrator import __version__
from orchestrator.cli.options import ComputeSettings, with_options
from orchestrator.cli.workspace import ResultsWorkspace
from orchestrator.util.console import print_line
from orchestrator.util.units import human_bytes, pluralize


class _CreateByDefault(TyperGroup):
    """The group ``bundle``, in which ``bundle GRID`` is short for ``bundle create GRID``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["create", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_CreateByDefault,
    no_args_is_help=True,
    help="A file with everything behind a grid's tables. `bundle GRID -o FILE` is `bundle create GRID -o FILE`.",
)

BundlePath = Annotated[Path, typer.Argument(metavar="FILE", help="a bundle")]


@app.command()
@with_options
def create(
    output: Annotated[Path, typer.Option("-o", "--output", help="the bundle's file, for example demo.bundle.zip")],
    workspace: ResultsWorkspace,
) -> None:
    """Write a grid's results, predictions and verdict into one file."""
    from orchestrator.grid.load import grid_files
    from orchestrator.sharing.bundle import make_bundle

    plan, files = workspace.results_plan(), grid_files(workspace.grid.given)
    results, failures = make_bundle(plan, files, workspace.store, output, workspace.overrides)
    counts = f"{results} of {pluralize(len(plan.grid.cells), 'cell')}, {pluralize(failures, 'failure')}"
    print_line(f"{output}: {counts}, {human_bytes(output.stat().st_size)}")


@app.command()
def verify(file: BundlePath) -> None:
    """Check a bundle, and compute its tables and verdict again.

    Every difference is printed. The exit code is 1 if there is a difference. No store is needed.
    """
    from orchestrator.sharing.verify import VERDICT, verify_bundle

    bundle, computed = verify_bundle(file)
    results, cells = len(bundle.results), pluralize(len(bundle.cells), "cell")
    print_line(f"grid {bundle.manifest.get('grid', '?')}: {results} of {cells} with results")
    if computed:
        print_line(f"computed again from the results: {pluralize(len(computed), 'file')}")
        if VERDICT not in computed:
            print_line("the bundle's verdict follows an earlier rule and is not compared", style="yellow")
    for name, what in bundle.problems.items():
        print_line(f"{name}: {what}", style="red")
    if bundle.version != __version__:
        print_line(f"written by version {bundle.version} of the project; this is {__version__}", style="yellow")
    if bundle.problems:
        raise typer.Exit(1)
    same = "tables and verdict" if VERDICT in computed else "tables"
    print_line(f"every checksum is right, and the {same} of the bundle equal those that were computed again")


@app.command()
@with_options
def rerun(
    file: BundlePath,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="number of cells to draw")] = 3,
    seed: Annotated[int, typer.Option("--seed", help="seed of the draw")] = 0,
    *,
    settings: ComputeSettings,
) -> None:
    """Measure randomly drawn cells of a bundle again, and compare the scores and predictions.

    Artifacts that --store lacks are built there, in this process. No result is written. The exit code is 1 if a score
    or a prediction differs.
    """
    from orchestrator.sharing.rerun import rerun_bundle

    differs = 0
    for found in rerun_bundle(file, settings, limit, seed):
        differs += not found.same
        if found.error:
            print_line(f"failed   {found.cell_id}: {found.error}", style="red")
            continue
        outcome = "same    " if found.same else "differs "
        other = "" if not found.other_predictions else f", {found.other_predictions} predictions differ"
        print_line(
            f"{outcome} {found.cell_id}: {found.accuracy:.2f} % in the bundle, {found.accuracy_now:.2f} % now{other}"
        )
        if not found.same:
            for name, (then, now) in found.versions.items():
                print_line(f"         {name}: {then} then, {now} now", style="yellow")
    if differs:
        raise typer.Exit(1)
