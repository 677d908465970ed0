"""A whole session of the ``grid`` command, and the parts of it that other commands use: track, report, serve."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.core.events import CellEvent
from orchestrator.execution.run import Ran, RunOptions, execute
from orchestrator.planning.disk import check_room
from orchestrator.planning.estimate import CORE_TFLOPS, GPU_TFLOPS, artifact_gflops, cell_gflops
from orchestrator.planning.plan import Plan, check_inputs, in_running_order, make_plan
from orchestrator.planning.plan_view import counts_line, estimate_line
from orchestrator.progress.progress import Progress
from orchestrator.progress.status_file import StatusFile, status_place
from orchestrator.report.paper.published import published_accuracy
from orchestrator.store import Corrupt, Store
from orchestrator.store.lease import only_driver
from orchestrator.tracking.background import TrackerThread
from orchestrator.tracking.errors import trouble_of
from orchestrator.tracking.place import tracking_place
from orchestrator.tracking.retry import Patience, patiently
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import SyncReport, Tracker, links
from orchestrator.tracking.ui import HOST, serve_ui
from orchestrator.util.errors import UserError
from orchestrator.util.interrupt import EXIT_CODE, as_typed, in_two_steps
from orchestrator.util.machine import gpus, usable_processors
from orchestrator.util.units import counted

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.core.settings import RunSettings
    from orchestrator.grid import Grid
    from orchestrator.report import ReportFiles, SourceRow
    from orchestrator.report.analysis.rows import Row
    from orchestrator.report.figures.palette import Style
    from orchestrator.store.results import Result


def alone(store: Store, grid: str, console: Console) -> AbstractContextManager[None]:
    """Hold the grid in the store for the block: whoever runs it, or writes its runs to MLflow, is the only one.

    What there is to say of a former holder goes to ``console``. Raises ``UserError`` when another process holds it.
    """
    return only_driver(store, grid, lambda line: console.print(line, style="yellow", highlight=False))


def run_session(
    grid: Grid, catalog: Catalog, store: Store, settings: RunSettings, options: RunOptions, console: Console
) -> int:
    """Plan, build, run, track, report.

    Returns the exit code: 0, 1 when something on record has failed, 130 when Ctrl-C has stopped it.

    Raises ``UserError`` before any work for what the user has to mend first.
    """
    data_root = Path(settings.data_root) if settings.data_root else None
    with alone(store, grid.name, console):
        plan = make_plan(grid, catalog, store, data_root, retry_failed=options.retry_failed)
        check_inputs(plan, catalog, data_root)
        check_room(plan, store, options.disk_budget)
        tracking_place(store)
        console.print(f"{grid.name}: {grid.title}", style="bold", highlight=False)
        console.print(counts_line(plan), highlight=False, soft_wrap=True)
        ran = Ran()
        if plan.todo:
            console.print(estimate_line(plan), highlight=False, soft_wrap=True)
            try:
                ran = _run(plan, catalog, store, settings, options, console)
            except KeyboardInterrupt:  # all that is to say has been said
                return EXIT_CODE
        after = plan.updated(store)
        files = write_grid_report(after, catalog, store, data_root)
        tracked = sync_tracking(after, catalog, store, files, console=console)
    _print_end(after, ran, files, store, console, tracked.line)
    return 1 if after.failed else 0


def _run(
    plan: Plan, catalog: Catalog, store: Store, settings: RunSettings, options: RunOptions, console: Console
) -> Ran:
    """Execute the plan while the terminal shows how far it is and MLflow is told of every finished cell."""
    title, resume = f"{plan.grid.name}: {plan.grid.title}", as_typed()
    on_gpu = settings.device != "cpu" and bool(gpus())
    progress = Progress(
        plan.todo,
        {need.address: artifact_gflops(need, catalog) for need in plan.missing},
        size_of=lambda cell: cell_gflops(cell, catalog),
        measured=plan.done,
        places=1 if options.local else max(1, usable_processors() // settings.threads),
        gflops=1e3 * (GPU_TFLOPS if on_gpu else CORE_TFLOPS),
        title=title,
        console=console,
        status=StatusFile(status_place(store.files, plan.grid.name), plan.grid.name, plan.grid.title, resume),
        how_far=store.how_far,
        log_of=lambda failed: failure.log if (failure := store.read_failure(failed)) else "",
        resume=resume,
    )
    describe = describe_in(plan, catalog)

    def on_event(event: CellEvent) -> None:
        progress.on_event(event)
        if event.kind == "finished":
            writer.put(event.cell.id)

    def say(line: str) -> None:
        console.print(f"MLflow: {line}", style="yellow", highlight=False, markup=False, soft_wrap=True)

    with (
        in_two_steps(progress.stopping),
        progress,  # outside the writer, so that it has the last word
        TrackerThread(lambda: open_tracker(store, plan.grid.name), describe, store.read_result, say=say) as writer,
    ):
        ran = execute(
            plan,
            catalog,
            settings,
            options,
            on_task=progress.on_task,
            on_event=on_event,
            on_places=progress.set_places,
        )
        problem = writer.close()
    if problem:
        say(f"{problem}; they are brought over below, or by `sync`")
    return ran


def open_tracker(store: Store, grid: str) -> Tracker:
    """The grid's experiment: in the store's own database, or on the server that ``MLFLOW_TRACKING_URI`` names."""
    place = tracking_place(store)
    return Tracker(place.uri, place.artifacts, grid, store.adapter_folder)


def describe_in(plan: Plan, catalog: Catalog) -> Callable[[Result], Labels]:
    """What a tracked run is labelled with: the grid's label, the domain's title, the paper's number, the colour."""

    @cache
    def styles() -> dict[str, Style]:  # not before it is asked for: the report's packages take seconds to import
        from orchestrator.report.figures.palette import styles_of

        return styles_of({plan.grid.label(cell): cell.method.name for cell in plan.grid.every})

    def describe(result: Result) -> Labels:
        cell = result.cell
        published = published_accuracy(
            cell.track,
            catalog.backbone(cell.backbone.name).published_as,
            cell.domain,
            cell.shots,
            cell.method.name,
            catalog.dataset(cell.dataset.name).published_as,
        )
        label = plan.grid.label(cell)
        return Labels(label, catalog.domain(cell.domain).title, published, styles()[label].colour)

    return describe


@dataclass(frozen=True)
class Tracked:
    """How bringing MLflow to what the results say has ended.

    Attributes:
        line: for people.
        whole: all of it is there.
    """

    line: str
    whole: bool


def sync_tracking(
    plan: Plan,
    catalog: Catalog,
    store: Store,
    files: ReportFiles | None = None,
    *,
    verify: bool = False,
    console: Console | None = None,
    patience: Patience | None = None,
) -> Tracked:
    """Make MLflow say what the results say. A store that is away is waited for; nothing here fails a run.

    The grid's experiment is of the whole grid: what ``--only`` and ``--limit`` leave out stays in it.

    With ``verify``, every run is looked at, even where the grid's own run says that nothing has changed. Ctrl-C ends
    the waiting.
    """
    later = f"`python -m orchestrator sync {plan.grid.name}` goes on later"
    every = plan.grid.every
    results = plan.done if every == plan.grid.cells else store.read_results(in_running_order(every))[0]

    def attempt(on_progress: Callable[[int, int], None]) -> SyncReport:
        return open_tracker(store, plan.grid.name).sync(
            results,
            describe_in(plan, catalog),
            report=files.page.parent if files else None,
            verify=verify,
            on_progress=on_progress,
        )

    try:
        done = patiently(attempt, console or Console(quiet=True), patience or Patience())
    except UserError:
        raise
    except KeyboardInterrupt:
        return Tracked(f"MLflow: stopped; the results are safe, and {later}", False)
    except Exception as error:  # the results are safe; a tracking server that is away is no reason to lose the report
        return Tracked(f"MLflow could not be written to: {trouble_of(error).words}; {later}", False)
    return Tracked(
        f"MLflow: {counted(done.added, 'run')} added, {done.kept} as they were, {done.removed} removed", True
    )


def write_grid_report(plan: Plan, catalog: Catalog, store: Store, data_root: Path | None) -> ReportFiles:
    """Write the grid's report into the store, from the results there are; of a remote store, on this machine first."""
    from orchestrator.report import write_report

    grid = plan.grid
    files = write_report(
        grid_name=grid.name,
        title=grid.title,
        description=grid.description,
        results=plan.done,
        failures=plan.failed,
        planned=plan.grid.cells,
        label_of=grid.label,
        published_of=published_of(catalog),
        names_of=published_names(catalog),
        sources=source_rows(plan, catalog, store, data_root),
        folder=store.on_this_machine(f"reports/{grid.name}"),
    )
    store.publish(f"reports/{grid.name}", last=files.page.name)
    return files


def where_report_lies(files: ReportFiles, grid: str, store: Store) -> str:
    """Where to look: the page in the store, and this machine's copy of it where the store is elsewhere."""
    if store.files.is_local:
        return str(files.page)
    return f"{files.page}, and in the store {store.files.place(f'reports/{grid}/{files.page.name}')}"


def published_of(catalog: Catalog) -> Callable[[Row], float | None]:
    """The paper's accuracy that belongs beside a row of the report, if it prints one."""

    def lookup(row: Row) -> float | None:
        backbone = catalog.backbone(row.backbone).published_as
        dataset = catalog.dataset(row.evaluated_on).published_as
        return published_accuracy(row.track, backbone, row.domain, row.k, row.method_name, dataset)

    return lookup


def published_names(catalog: Catalog) -> Callable[[str, str], tuple[str | None, str | None]]:
    """A backbone's and a dataset's names in the paper's tables, ``None`` for what it does not have."""

    def lookup(backbone: str, dataset: str) -> tuple[str | None, str | None]:
        return catalog.backbone(backbone).published_as, catalog.dataset(dataset).published_as

    return lookup


def source_rows(plan: Plan, catalog: Catalog, store: Store, data_root: Path | None) -> list[SourceRow]:
    """The accuracy of every source model on its own task, of those that are built and can be read."""
    from orchestrator.report import SourceRow

    models = {
        plan.sources[source]
        for cell in plan.cells
        for source in cell.sources
        if source in plan.sources  # a meta-learned start's sources are images
    }
    rows = []
    for model in sorted(models, key=lambda model: (model.backbone.name, model.ref.dataset)):
        try:
            artifact = store.artifact(model.address)
        except Corrupt:
            continue  # no open cell needs it; it is built anew once one does
        if artifact is not None and "accuracy_fine_tuned" in artifact.meta:  # an adopted one may come without images
            rows.append(
                SourceRow(
                    model.backbone.name,
                    catalog.dataset(model.ref.dataset).domain,
                    model.ref.dataset,
                    artifact.meta["accuracy_zero_shot"],
                    artifact.meta["accuracy_fine_tuned"],
                    artifact.meta["test_images"],
                )
            )
    return rows


def serve_tracking_ui(store: Store, grid: str | None, port: int, console: Console) -> int:
    """Serve MLflow's interface on loopback and print where to look; returns the server's exit code.

    Raises ``UserError`` when there is nothing to show yet, or the port is taken.
    """
    place = tracking_place(store)
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
    if grid is None:
        return
    try:
        found = links(uri, grid, base)
    except Exception as error:  # of MLflow, requests or a database
        trouble = trouble_of(error)
        if trouble.kind == "other":
            raise
        raise UserError(trouble.words, where=uri) from None
    for shows, link in found.items():
        console.print(f"  {shows}: {link}", highlight=False, soft_wrap=True, markup=False)


def _print_end(plan: Plan, ran: Ran, files: ReportFiles, store: Store, console: Console, tracked: str) -> None:
    from orchestrator.report import terminal_summary

    summary = terminal_summary(
        results=plan.done, failures=plan.failed, planned=plan.grid.cells, label_of=plan.grid.label
    )
    lines = (
        f"this run: {ran.built} artifacts built, {ran.trials} trials started",
        tracked,
        f"report: {where_report_lies(files, plan.grid.name, store)}",
        f"compare runs: python -m orchestrator ui {plan.grid.name} --store {store.url}",
    )
    console.print()
    console.print(summary)
    console.print()
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)
