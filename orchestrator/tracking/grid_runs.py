"""The runs of a grid in MLflow: their location and labels, and the sync that makes them equal to the results."""

import shlex
from functools import cached_property
from pathlib import Path

from rich.console import Console

from orchestrator.analysis.comparable import ablations_of, changed_places, plain_labels
from orchestrator.analysis.display_names import display_names
from orchestrator.catalog import Catalog
from orchestrator.core.events import OnProgress
from orchestrator.grid import Grid
from orchestrator.report.analysis import GridResults
from orchestrator.report.paper.published import published_accuracy
from orchestrator.report.styles import styles_of
from orchestrator.store import Store
from orchestrator.store.results import Result
from orchestrator.tracking.background import BackgroundTracker
from orchestrator.tracking.errors import classify_tracking_error
from orchestrator.tracking.location import tracking_location
from orchestrator.tracking.retry import retry_sync
from orchestrator.tracking.runs import Describe, Labels
from orchestrator.tracking.tracker import SyncReport, Tracker
from orchestrator.util.console import print_line
from orchestrator.util.errors import UserError
from orchestrator.util.units import pluralize


class GridRuns:
    """The runs of a grid in MLflow, in the store's database or on ``MLFLOW_TRACKING_URI``.

    Making this object opens no connection. Raises ``UserError`` for a tracking address of an unknown scheme, and for a
    remote store without a tracking server.
    """

    def __init__(self, grid: Grid, catalog: Catalog, store: Store) -> None:
        self._grid, self._catalog, self._store = grid, catalog, store
        self.location = tracking_location(store)

    def open_tracker(self) -> Tracker:
        """Open a tracker for the grid's MLflow experiment. The first call in a process takes seconds."""
        return Tracker(self.location, self._grid.name, self._store.adapter_folder)

    @cached_property
    def label(self) -> Describe:
        """The function that gives the labels of a result's run."""
        grid = self._grid
        methods = {grid.label(cell): cell.method.name for cell in grid.all_cells}
        styles, titles = styles_of(methods), display_names(methods)
        ablations = ablations_of(grid.all_cells, {cell.id: grid.label(cell) for cell in grid.all_cells})
        plain = plain_labels(methods)
        changed = changed_places(cell.place for cell in grid.all_cells)

        def label(result: Result) -> Labels:
            cell, name = result.cell, grid.label(result.cell)
            backbone, dataset = self._catalog.published_names(cell.backbone.name, cell.dataset.name)
            printed = published_accuracy(cell.track, backbone, cell.domain, cell.shots, cell.method.name, dataset)
            return Labels(
                name,
                self._catalog.domain(cell.domain).title,
                printed if name in plain and result.target_evaluation else None,
                styles[name]["color"],
                titles[name],
                ablation=(cell.place, name) in ablations or cell.place in changed,
            )

        return label

    def track_in_background(self, console: Console) -> BackgroundTracker:
        """Start a thread that writes the runs of finished cells, and return the queue that takes the cells.

        ``console`` shows when runs cannot be written to MLflow, and when they can be written again.
        """

        def say(line: str) -> None:
            print_line(f"MLflow: {line}", console, "yellow")

        return BackgroundTracker(self.open_tracker, self.label, self._store.read_result, say=say)

    @property
    def later(self) -> str:
        """Which command writes the runs that are missing, as text."""
        command = f"python -m orchestrator sync {self._grid.given} --store {shlex.quote(self._store.url)}"
        return f"`{command}` continues later"

    def sync(self, results: GridResults, report: Path, console: Console, *, verify: bool = False) -> tuple[bool, str]:
        """Make the runs of the grid's MLflow experiment equal to the results.

        Returns whether the runs are equal at the end, and one line about the outcome.

        If a tracking server does not answer, the sync is repeated for a while. Errors of MLflow are not raised,
        because the results are stored in any case. Only a ``UserError`` and ``KeyboardInterrupt`` are raised.

        Args:
            results: the results of the whole grid, including the cells that ``--only`` or ``--limit`` leave out. The
                sync removes the runs of cells that have no result here.
            report: the folder of files to attach to the run of the whole grid.
            console: shows the progress.
            verify: whether to compare every run even if the run of the whole grid says that nothing has changed.
        """

        def attempt(on_progress: OnProgress) -> SyncReport:
            tracker, found, verdicts = self.open_tracker(), results.results, results.verdicts
            return tracker.sync(found, self.label, verdicts, report, verify=verify, on_progress=on_progress)

        try:
            done = retry_sync(attempt, console)
        except UserError:
            raise
        except Exception as error:  # an error of MLflow does not end the command
            problem = classify_tracking_error(error)
            later = f"after that, {self.later.removesuffix(' later')}" if problem.kind == "refused" else self.later
            return False, f"MLflow could not be written to: {problem.message}; {later}"
        return True, f"MLflow: {pluralize(done.added, 'run')} added, {done.kept} unchanged, {done.removed} removed"
