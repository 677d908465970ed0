"""A whole session of the ``grid`` command, and the parts of it that other commands use: track, report, serve."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from orchestrator.plan import Plan, check_inputs, make_plan, source_models
from orchestrator.published import published_accuracy
from orchestrator.run import Ran, RunOptions, execute, only_driver
from orchestrator.show import counts_line, estimate_line
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.grid import Grid
    from orchestrator.report import ReportFiles, SourceRow
    from orchestrator.report.rows import Row
    from orchestrator.settings import RunSettings


def run_session(
    grid: Grid, catalog: Catalog, store: Store, settings: RunSettings, options: RunOptions, console: Console
) -> int:
    """Plan, build, run, track, report. Returns the exit code: 0, or 1 when something on record has failed.

    Raises ``UserError`` before any work for what the user has to mend first.
    """
    data_root = Path(settings.data_root) if settings.data_root else None
    with only_driver(store, grid.name):
        plan = make_plan(grid, catalog, store, data_root, retry_failed=options.retry_failed)
        check_inputs(plan, catalog, data_root)
        console.print(f"{grid.name}: {grid.title}", style="bold", highlight=False)
        console.print(counts_line(plan), highlight=False, soft_wrap=True)
        ran = Ran()
        if plan.todo:
            console.print(estimate_line(plan), highlight=False, soft_wrap=True)
            ran = execute(plan, catalog, settings, options, on_task=print, on_event=print)
        after = make_plan(grid, catalog, store, data_root)
        files = write_grid_report(after, catalog, store, data_root)
    _print_end(after, ran, files, store, console)
    return 1 if after.failed else 0


def write_grid_report(plan: Plan, catalog: Catalog, store: Store, data_root: Path | None) -> ReportFiles:
    """Write the grid's report into the store, from the results there are."""
    from orchestrator.report import write_report

    grid = plan.grid
    return write_report(
        grid_name=grid.name,
        title=grid.title,
        description=grid.description,
        results=plan.done,
        failures=plan.failed,
        planned=plan.cells,
        label_of=grid.label,
        published_of=published_of(catalog),
        sources=source_rows(plan, catalog, store, data_root),
        folder=store.files.local_path(f"reports/{grid.name}"),
    )


def published_of(catalog: Catalog) -> Callable[[Row], float | None]:
    """The paper's accuracy that belongs beside a row of the report, if it prints one."""

    def lookup(row: Row) -> float | None:
        backbone = catalog.backbone(row.backbone).published_as
        dataset = catalog.dataset(row.evaluated_on).published_as
        return published_accuracy(row.track, backbone, row.domain, row.k, row.method_name, dataset)

    return lookup


def source_rows(plan: Plan, catalog: Catalog, store: Store, data_root: Path | None) -> list[SourceRow]:
    """The accuracy of every source model on its own task, of those that are built."""
    from orchestrator.report import SourceRow

    model_of = source_models(plan.grid, catalog, data_root)
    models = {model_of(cell, source) for cell in plan.cells for source in cell.sources}
    rows = []
    for model in sorted(models, key=lambda model: (model.backbone.name, model.dataset.name)):
        artifact = store.artifact(model.address)
        if artifact is not None:
            rows.append(
                SourceRow(
                    model.backbone.name,
                    catalog.dataset(model.dataset.name).domain,
                    model.dataset.name,
                    artifact.meta["accuracy_zero_shot"],
                    artifact.meta["accuracy_fine_tuned"],
                    artifact.meta["test_images"],
                )
            )
    return rows


def _print_end(plan: Plan, ran: Ran, files: ReportFiles, store: Store, console: Console) -> None:
    from orchestrator.report import terminal_summary

    console.print()
    console.print(
        terminal_summary(results=plan.done, failures=plan.failed, planned=plan.cells, label_of=plan.grid.label)
    )
    console.print(f"\nthis run: {ran.built} artifacts built, {ran.trials} trials started", highlight=False)
    console.print(f"report: {files.page}", soft_wrap=True, highlight=False)
    console.print(
        f"MLflow: python -m orchestrator ui {plan.grid.name} --store {store.url}", soft_wrap=True, highlight=False
    )
