"""The session of the ``grid`` command: plan, check, run, report, track.

Each step takes the value of the step before and gives the next one. Everything finished is in the store the moment it
is finished. So a session can be killed at any point, and the same command continues.
"""

from __future__ import annotations

from functools import partial

from rich.console import Console

from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.cli.workspace import Workspace
from orchestrator.execution.run import RunOptions, execute
from orchestrator.planning.checks import check_disk_space, check_inputs
from orchestrator.planning.estimate import CORE_TFLOPS, assumed_gpu_tflops, estimate_line
from orchestrator.planning.plan import Plan
from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.display import ProgressDisplay
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile
from orchestrator.report import terminal_summary
from orchestrator.report.grid_report import read_grid_results, report_location, write_grid_report
from orchestrator.store.lease import grid_lease
from orchestrator.tracking.grid_runs import GridRuns
from orchestrator.util.console import print_line, print_sentence
from orchestrator.util.interrupt import EXIT_CODE, command_line, two_step_interrupt
from orchestrator.util.machine import local_gpus, usable_processors
from orchestrator.util.units import pluralize


def run_session(workspace: Workspace, options: RunOptions, console: Console) -> int:
    """Run a grid from its plan to its report.

    Returns the exit code: 0; 1 when a cell or an artifact is recorded as failed; 130 after Ctrl-C.

    Raises ``UserError`` before any work when an input is missing, weights cannot be fetched, the disk is too small, or
    the tracking address is wrong.
    """
    store, runs = workspace.store, GridRuns(workspace.grid, workspace.catalog, workspace.store)
    with grid_lease(store.files, workspace.grid.name, partial(print_line, console=console, style="yellow")):
        plan = workspace.plan(retry_failed=options.retry_failed)
        check_inputs(plan)
        check_disk_space(plan, store, options.disk_budget)
        if options.address is None:  # the nodes of a cluster have caches of their own
            for name in sorted({cell.backbone.name for cell in plan.todo}):
                fetch_weights(plan.catalog.backbone(name), console, where=plan.grid.name)
        print_line(f"{plan.grid.name}: {plan.grid.title}", console, "bold")
        print_sentence(plan.counts, console)
        if plan.todo:
            print_sentence(estimate_line(plan), console)
        if not plan.todo:
            status = StatusFile(store.files, plan.grid.name, plan.grid.title, command_line())
            status.write("ended", Snapshot(before=len(plan.done), failed=len(plan.failed)))
        try:
            built, started = _run(plan, runs, workspace, options, console) if plan.todo else (0, 0)
        except KeyboardInterrupt:  # the progress view has printed how to continue
            return EXIT_CODE
        finished = plan.updated(store)
        grid_results = read_grid_results(finished, store)
        page = write_grid_report(grid_results, store)
        _, tracked = runs.sync(grid_results, page.parent, console)
    console.print()
    console.print(terminal_summary(grid_results))
    console.print()
    for line in (
        f"this run: {pluralize(built, 'artifact')} built, {pluralize(started, 'trial')} started",
        tracked,
        f"report: {report_location(page, store)}",
        f"compare runs: python -m orchestrator ui {grid_results.name} --store {store.url}",
    ):
        print_line(line, console)
    return 1 if finished.failed else 0


def _run(plan: Plan, runs: GridRuns, workspace: Workspace, options: RunOptions, console: Console) -> tuple[int, int]:
    """Execute the plan. The terminal shows progress, and MLflow gets every finished cell from a background thread."""
    store, settings = workspace.store, workspace.settings
    on_gpu = settings.device != "cpu" and bool(local_gpus())
    counter = ProgressCounter(
        plan.todo,
        {spec.address: spec.gflops(plan.catalog) for spec in plan.missing},
        plan.costs,
        finished_before=len(plan.done),
        slots=1 if options.local else max(1, usable_processors() // settings.threads),
        gflops=1e3 * (assumed_gpu_tflops() if on_gpu else CORE_TFLOPS),
        build_progress=store.build_progress,
        log_of=lambda failed: failure.log if (failure := store.read_failure(failed)) else "",
    )
    status = StatusFile(store.files, plan.grid.name, plan.grid.title, command_line())
    progress = ProgressDisplay(counter, status, console)
    with (
        two_step_interrupt(progress.stopping),
        progress,  # outside the tracker, so that the progress view prints last
        runs.track_in_background(console) as tracker,
    ):
        counts = execute(plan, settings, options, counter, tracker.put)
        problem = tracker.close()
    if problem:
        print_line(f"MLflow: {problem}; the sync below or the `sync` command writes them", console, "yellow")
    return counts
