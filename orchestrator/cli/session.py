"""The session of the ``grid`` command: plan, check, run, report, track.

Each step takes the value that the step before returned. Every artifact and result is in the store as soon as it is
finished. So a session can be killed at any point, and the same command continues.
"""

import shlex
from contextlib import suppress
from functools import partial
from importlib.metadata import version

from rich.console import Console

from orchestrator.artifacts.load_backbone import fetch_weights
from orchestrator.artifacts.spec import usable_device
from orchestrator.cli.workspace import Workspace
from orchestrator.execution.run import RunOptions, check_ray, execute
from orchestrator.planning.checks import check_disk_space, check_inputs
from orchestrator.planning.estimate import estimate_line, race_range
from orchestrator.planning.plan import make_plan, raced_plan
from orchestrator.progress.counter import ProgressCounter
from orchestrator.progress.display import ProgressDisplay
from orchestrator.progress.snapshot import Snapshot
from orchestrator.progress.status_file import StatusFile
from orchestrator.report import terminal_summary
from orchestrator.report.grid_report import read_grid_results, remarks_on_data, report_location, write_grid_report
from orchestrator.store.lease import grid_lease
from orchestrator.tracking.grid_runs import GridRuns
from orchestrator.util.console import print_line
from orchestrator.util.interrupt import EXIT_CODE, command_line, two_step_interrupt
from orchestrator.util.units import pluralize


def run_session(workspace: Workspace, options: RunOptions, console: Console, *, verbose: bool = False) -> int:
    """Run a grid from its plan to its report. ``verbose`` prints every verdict in words and every table.

    Returns the exit code: 0; 1 when a cell or an artifact is recorded as failed; 130 after Ctrl-C.

    Raises ``UserError`` before any work when an input is missing, weights cannot be fetched, the disk is too small, or
    the tracking address is wrong.
    """
    grid, catalog, store, settings = workspace.grid, workspace.catalog, workspace.store, workspace.settings
    runs = GridRuns(grid, catalog, store)
    say = partial(print_line, console=console)
    warn = partial(say, style="yellow")
    with two_step_interrupt(lambda: None), grid_lease(store.files, grid.name, warn):
        whole = make_plan(grid, catalog, store, settings.data_folder, retry_failed=options.retry_failed)
        plan = raced_plan(whole, store) if options.raced else whole
        outline = [
            whole.counts,
            race_range(whole, plan, None) if options.raced else "",
            estimate_line(plan) if plan.todo else "",
        ]
        check_disk_space(whole, store, options.disk_budget)  # a race may measure only some of the cells
        check_inputs(whole)
        if whole.todo and not options.local:
            check_ray()
        if options.address is None:  # the machines of a cluster have their own devices and caches
            usable_device(settings)
            for name in sorted({cell.backbone.name for cell in whole.todo}):
                fetch_weights(catalog.backbone(name), console, where=grid.name)
        say(f"{grid.name}: {grid.title}", style="bold")
        # These lines have no path and no command that one would copy. On a terminal, they are wrapped between words.
        for sentence in filter(None, outline):
            console.print(sentence, markup=False, highlight=False, soft_wrap=not console.is_terminal)
        if plan.todo:
            if not options.local:
                say(f"Ray {version('ray')}{f' at {options.address}' if options.address else ''}")
            for line in plan.notes:
                say(line)

        status, built, started = StatusFile(store.files, grid.given, grid.title, command_line()), 0, 0
        if not plan.todo:
            done, failed, left_out = len(plan.done), len(plan.failed), len(plan.left_out)
            status.write("ended", Snapshot(before=done, failed=failed, race=plan.race_line, left_out=left_out))
        else:
            counter = ProgressCounter.of_plan(plan, store, settings, local=options.local)
            progress = ProgressDisplay(counter, status, console)
            try:
                with two_step_interrupt(progress.stopping), progress, runs.track_in_background(console) as tracker:
                    plan, built, started = execute(plan, settings, options, counter, tracker.put, warn)
            except KeyboardInterrupt:  # the progress display has printed how to continue
                return EXIT_CODE

        results = read_grid_results(plan, store)
        page = write_grid_report(results, store)
        every = plan.of_whole_grid(store)
        tracked = f"MLflow: stopped; the results are safe, and {runs.later}"
        with suppress(KeyboardInterrupt), two_step_interrupt(lambda: None):  # Ctrl-C ends only the waiting for MLflow
            _, tracked = runs.sync(results if every is plan else read_grid_results(every, store), page.parent, console)
    console.print()
    console.print(terminal_summary(results, verbose=verbose))
    console.print()
    if options.raced:
        say(plan.race_line)
    for remark in remarks_on_data(plan, store):
        warn(remark)
    for line in (
        f"this run: {pluralize(built, 'artifact')} built, {pluralize(started, 'trial')} started",
        tracked,
        f"report: {report_location(page, store)}",
        f"compare runs: python -m orchestrator ui {grid.name} --store {shlex.quote(store.url)}",
    ):
        say(line)
    return 1 if plan.failed else 0
