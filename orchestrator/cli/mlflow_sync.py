"""A grid's runs in MLflow: their location, their labels, and the sync that makes them equal to the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.planning.plan import Plan, in_running_order
from orchestrator.report.paper.published import published_accuracy
from orchestrator.store import Store
from orchestrator.tracking.errors import classify_tracking_error
from orchestrator.tracking.location import tracking_location
from orchestrator.tracking.retry import RetryPolicy, retry_sync
from orchestrator.tracking.runs import Labels
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.cli.workspace import Workspace
    from orchestrator.report import ReportFiles
    from orchestrator.report.styles import Style
    from orchestrator.store.results import Result


def open_tracker(store: Store, grid: str) -> Tracker:
    """Open a tracker for the grid's MLflow experiment, in the store's database or on ``MLFLOW_TRACKING_URI``."""
    place = tracking_location(store)
    return Tracker(place.uri, place.artifacts, grid, store.adapter_folder)


def label_runs(plan: Plan, catalog: Catalog) -> Callable[[Result], Labels]:
    """``result -> Labels``: the grid's label, the domain's title, the paper's accuracy and the colour of its run."""

    @cache
    def styles() -> dict[str, Style]:  # imported on first use: the report's packages take seconds to import
        from orchestrator.report.styles import styles_of

        return styles_of({plan.grid.label(cell): cell.method.name for cell in plan.grid.all_cells})

    def label(result: Result) -> Labels:
        cell = result.cell
        published = published_accuracy(
            cell.track,
            catalog.backbone(cell.backbone.name).published_as,
            cell.domain,
            cell.shots,
            cell.method.name,
            catalog.dataset(cell.dataset.name).published_as,
        )
        name = plan.grid.label(cell)
        return Labels(name, catalog.domain(cell.domain).title, published, styles()[name].colour)

    return label


@dataclass(frozen=True)
class SyncOutcome:
    """How a sync ended.

    Attributes:
        message: one line for people.
        complete: whether the runs in MLflow equal the results.
    """

    message: str
    complete: bool


def sync_grid(
    plan: Plan,
    workspace: Workspace,
    report: ReportFiles | None = None,
    *,
    verify: bool = False,
    console: Console | None = None,
    retry_policy: RetryPolicy | None = None,
) -> SyncOutcome:
    """Make the runs of the grid's MLflow experiment equal to the results.

    The experiment covers the whole grid: cells that ``--only`` and ``--limit`` leave out keep their runs. A tracking
    server that does not answer is tried again for a while; Ctrl-C ends the waiting. Only ``UserError`` is raised: the
    results are stored in any case.

    Args:
        plan: the grid and its results.
        workspace: store and catalog.
        report: files to attach to the grid's own run.
        verify: compare every run, even when the grid's own run says that nothing has changed.
        console: shows the progress.
        policy: how long to try again.
    """
    store = workspace.store
    later = f"`python -m orchestrator sync {plan.grid.name}` continues later"
    every = plan.grid.all_cells
    results = plan.done if every == plan.grid.cells else store.read_results(in_running_order(every))[0]

    def attempt(on_progress: Callable[[int, int], None]) -> SyncReport:
        return open_tracker(store, plan.grid.name).sync(
            results,
            label_runs(plan, workspace.catalog),
            report=report.page.parent if report else None,
            verify=verify,
            on_progress=on_progress,
        )

    try:
        done = retry_sync(attempt, console or Console(quiet=True), retry_policy or RetryPolicy())
    except UserError:
        raise
    except KeyboardInterrupt:
        return SyncOutcome(f"MLflow: stopped; the results are safe, and {later}", False)
    except Exception as error:  # a tracking server that is away is no reason to lose the report
        return SyncOutcome(f"MLflow could not be written to: {classify_tracking_error(error).message}; {later}", False)
    return SyncOutcome(
        f"MLflow: {pluralize(done.added, 'run')} added, {done.kept} unchanged, {done.removed} removed", True
    )
