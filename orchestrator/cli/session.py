"""The session of the ``grid`` command: plan, check, run, report, track.

Each step takes the value of the step before and gives the next one. Everything finished is in the store the moment it
is finished. So a session can be killed at any point, and the same command continues.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.cli.mlflow_sync import label_runs, open_tracker, sync_grid
from orchestrator.cli.workspace import Workspace
from orchestrator.core.events import CellEvent
from orchestrator.execution.run import RunOptions, RunSummary, execute
from orchestrator.planning.disk import check_disk_space
from orchestrator.planning.estimate import CORE_TFLOPS, GPU_TFLOPS
from orchestrator.planning.inputs import check_inputs
from orchestrator.planning.plan import Plan
from orchestrator.planning.plan_view import counts_line, estimate_line
from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.display import ProgressDisplay
from orchestrator.progress.status_file import StatusFile
from orchestrator.report.grid_report import report_location, write_grid_report
from orchestrator.store.lease import grid_lease
from orchestrator.tracking.background import BackgroundTracker
from orchestrator.tracking.location import tracking_location
from orchestrator.util.interrupt import EXIT_CODE, command_line, two_step_interrupt
from orchestrator.util.machine import local_gpus, usable_processors
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from orchestrator.report import ReportFiles


def hold_grid(workspace: Workspace, console: Console) -> AbstractContextManager[None]:
    """Hold the grid's lease during the block, so that no other process runs the grid or writes its MLflow runs.

    Prints when the lease of a dead process is taken over. Raises ``UserError`` when another process holds the lease.
    """
    grid = workspace.grid.name
    return grid_lease(workspace.store, grid, lambda line: console.print(line, style="yellow", highlight=False))


def run_session(workspace: Workspace, options: RunOptions, console: Console) -> int:
    """Run a grid from its plan to its report.

    Returns the exit code: 0; 1 when a cell or an artifact is recorded as failed; 130 after Ctrl-C.

    Raises ``UserError`` before any work when an input is missing or the disk is too small.
    """
    with hold_grid(workspace, console):
        plan = workspace.plan(retry_failed=options.retry_failed)
        _check(plan, workspace, options)
        _announce(plan, console)
        try:
            ran = _run(plan, workspace, options, console) if plan.todo else RunSummary()
        except KeyboardInterrupt:  # the progress view has printed how to continue
            return EXIT_CODE
        finished = plan.updated(workspace.store)
        report = write_grid_report(finished, workspace.catalog, workspace.store)
        tracked = sync_grid(finished, workspace, report, console=console)
    _print_end(finished, ran, report, tracked.message, workspace, console)
    return 1 if finished.failed else 0


def _check(plan: Plan, workspace: Workspace, options: RunOptions) -> None:
    """Raise ``UserError`` for missing inputs, too little disk, or a wrong tracking address, before any work."""
    check_inputs(plan)
    check_disk_space(plan, workspace.store, options.disk_budget)
    tracking_location(workspace.store)


def _announce(plan: Plan, console: Console) -> None:
    console.print(f"{plan.grid.name}: {plan.grid.title}", style="bold", highlight=False)
    console.print(counts_line(plan), highlight=False, soft_wrap=True)
    if plan.todo:
        console.print(estimate_line(plan), highlight=False, soft_wrap=True)


def _run(plan: Plan, workspace: Workspace, options: RunOptions, console: Console) -> RunSummary:
    """Execute the plan. The terminal shows progress, and MLflow gets every finished cell from a background thread."""
    store, grid = workspace.store, plan.grid
    progress = _progress(plan, workspace, options, console)
    counter = progress.counter

    def warn(line: str) -> None:
        console.print(f"MLflow: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    def on_event(event: CellEvent) -> None:
        counter.on_event(event)
        if event.kind == "finished":
            tracker.put(event.cell.id)

    with (
        two_step_interrupt(progress.stopping),
        progress,  # outside the tracker, so that the progress view prints last
        BackgroundTracker(
            lambda: open_tracker(store, grid.name), label_runs(plan, workspace.catalog), store.read_result, say=warn
        ) as tracker,
    ):
        ran = execute(
            plan,
            workspace.catalog,
            workspace.settings,
            options,
            on_task=counter.on_task,
            on_event=on_event,
            on_slots=counter.set_slots,
        )
        problem = tracker.close()
    if problem:
        warn(f"{problem}; the sync below or the `sync` command writes them")
    return ran


def _progress(plan: Plan, workspace: Workspace, options: RunOptions, console: Console) -> ProgressDisplay:
    """The progress of a run, shown on the console and written to the status file."""
    store, settings, catalog = workspace.store, workspace.settings, workspace.catalog
    title, resume = f"{plan.grid.name}: {plan.grid.title}", command_line()
    on_gpu = settings.device != "cpu" and bool(local_gpus())
    counter = ProgressCounter(
        plan.todo,
        {spec.address: spec.gflops(catalog) for spec in plan.missing},
        plan.costs,
        finished_before=len(plan.done),
        slots=1 if options.local else max(1, usable_processors() // settings.threads),
        gflops=1e3 * (GPU_TFLOPS if on_gpu else CORE_TFLOPS),
        build_progress=store.build_progress,
        log_of=lambda failed: failure.log if (failure := store.read_failure(failed)) else "",
    )
    status = StatusFile(store.files, plan.grid.name, plan.grid.title, resume)
    return ProgressDisplay(counter, title=title, console=console, status=status, resume_command=resume)


def _print_end(
    plan: Plan, ran: RunSummary, report: ReportFiles, tracked: str, workspace: Workspace, console: Console
) -> None:
    """Print the accuracies, what this run did, and where the report and the runs are."""
    from orchestrator.report import terminal_summary

    console.print()
    console.print(
        terminal_summary(results=plan.done, failures=plan.failed, planned=plan.grid.cells, label_of=plan.grid.label)
    )
    console.print()
    for line in (
        f"this run: {pluralize(ran.built, 'artifact')} built, {pluralize(ran.trials, 'trial')} started",
        tracked,
        f"report: {report_location(report, plan.grid.name, workspace.store)}",
        f"compare runs: python -m orchestrator ui {plan.grid.name} --store {workspace.store.url}",
    ):
        console.print(line, soft_wrap=True, highlight=False)
