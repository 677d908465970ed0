"""``grid`` and ``plan``: run a grid, or show its cells, artifacts and estimated time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import options
from orchestrator.cli.workspace import Workspace, open_workspace
from orchestrator.core.settings import RunSettings
from orchestrator.util.console import Console, print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import parse_bytes, parse_duration

if TYPE_CHECKING:
    from orchestrator.planning.gpu_speeds import GpuKind

Size = int | None
"""A size in bytes."""


def _size(option: str, help_text: str) -> Any:
    return typer.Option(option, metavar="SIZE", parser=partial(parse_bytes, where=option), help=help_text)


@dataclass(frozen=True)
class PlanOptions:
    """The options that ``grid`` and ``plan`` share: the cells, which of them run, and what memory and disk allow."""

    grid: options.GridName
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="FIELD=A,B", help="keep cells that match; may be repeated")
    ] = None
    set_: options.SetValues = None
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="use only the first N cells")] = None
    race: Annotated[
        bool | None,
        typer.Option(
            "--race/--no-race", help="stop measuring methods that cannot be the best any more, or measure all methods"
        ),
    ] = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="run failed cells again")] = False
    disk_budget: Annotated[Size, _size("--disk-budget", "largest size of the artifacts to build, e.g. 200GB")] = None
    gpu_memory: Annotated[Size, _size("--gpu-memory", "show how GPUs of that size would be packed, e.g. 40GiB")] = None

    def workspace(self, settings: RunSettings) -> tuple[Workspace, bool]:
        """Return the workspace of the grid, and whether races choose which cells run."""
        opened = open_workspace(self.grid, settings, only=self.only, overrides=self.set_, limit=self.limit)
        return opened, opened.grid.race if self.race is None else self.race


GridOptions = Annotated[PlanOptions, PlanOptions]


@options.with_options
def grid(
    asked: GridOptions,
    plan: Annotated[bool, typer.Option("--plan", help="show the plan, and run nothing")] = False,
    local: Annotated[bool, typer.Option("--local", help="run in this process, cell by cell, without Ray")] = False,
    address: Annotated[str | None, typer.Option("--address", help="a running Ray cluster: auto or HOST:PORT")] = None,
    cell_limit: Annotated[
        float | None,
        typer.Option(
            "--cell-limit",
            metavar="DURATION",
            parser=partial(parse_duration, where="--cell-limit"),
            help="stop a cell that runs longer than this, e.g. 90min; by default 6h; 0 for no limit",
        ),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="print every verdict and every table at the end")] = False,
    *,
    settings: options.ComputeSettings,
) -> None:
    """Run a grid: build, measure, track, report.

    The same command continues an interrupted run.
    """
    from orchestrator.cli.session import run_session
    from orchestrator.execution.run import CELL_LIMIT_SECONDS, RunOptions
    from orchestrator.progress.status_file import namesake, read_status
    from orchestrator.sharing.grid_listing import write_listing

    if local and address:
        raise UserError("--local and --address exclude each other", hint="give one of them")
    if asked.gpu_memory is not None and not plan:
        raise UserError("only a plan reads this option", where="--gpu-memory", hint="add --plan")
    if local and cell_limit is not None:
        raise UserError("--local cannot end a running cell, so it takes no --cell-limit", hint="give one of them")
    if not local and settings.device is not None and ":" in settings.device:
        what = f"{settings.device} is for --local: on Ray, every worker sees its GPU as cuda:0"
        raise UserError(what, where="--device", hint="give cuda; CUDA_VISIBLE_DEVICES names the GPUs that Ray uses")
    workspace, raced = asked.workspace(settings)
    if plan:
        _print_plan(workspace, asked, raced=raced)
        return
    if other := namesake(read_status(workspace.store.files, workspace.grid.name), asked.grid):
        what = f"{other} has the same name, so its report and its runs in MLflow are replaced; its results stay"
        print_line(f"note: {what}", style="yellow")
    longest = CELL_LIMIT_SECONDS if cell_limit is None else cell_limit
    how = RunOptions(local, address, asked.retry_failed, asked.disk_budget, longest, raced)
    code = run_session(workspace, how, Console(), verbose=verbose)
    if not (asked.only or asked.limit):
        write_listing(asked.grid, workspace.grid, workspace.catalog, settings, asked.set_ or ())
    raise typer.Exit(code)


@options.with_options
def plan(
    asked: GridOptions,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="KIND", help="show the hours on one GPU of that kind, e.g. h200, a100, 4090"),
    ] = None,
    as_json: options.AsJson = False,
    *,
    settings: options.StoreSettings,
) -> None:
    """Show the cells and artifacts of a grid, and the time and space that they need.

    Nothing runs.
    """
    from orchestrator.planning.gpu_speeds import find_gpu

    kind = find_gpu(gpu) if gpu is not None else None
    workspace, raced = asked.workspace(settings)
    if as_json and asked.gpu_memory is not None:
        raise UserError("--json does not show how GPUs are packed", where="--gpu-memory", hint="give one of the two")
    if as_json:
        from orchestrator.planning.plan_view import plan_record, race_record

        made = workspace.plan(retry_failed=asked.retry_failed)
        record = plan_record(made, workspace.store, asked.disk_budget, kind)
        options.print_json({**record, "race": race_record(made, workspace.store, kind)} if raced else record)
        return
    _print_plan(workspace, asked, kind, raced=raced)


def _print_plan(workspace: Workspace, asked: PlanOptions, kind: GpuKind | None = None, *, raced: bool) -> None:
    from orchestrator.planning.estimate import race_range
    from orchestrator.planning.plan import raced_plan
    from orchestrator.planning.plan_view import plan_view

    made = workspace.plan(retry_failed=asked.retry_failed)
    Console().print(plan_view(made, workspace.store, asked.disk_budget, asked.gpu_memory, kind), crop=False)
    if raced:
        first = raced_plan(made, workspace.store)
        print_line(f"{race_range(made, first, kind)}\n{first.race_line}")
