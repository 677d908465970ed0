"""The workspace of a command: a grid, the catalog, a store and the settings."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from orchestrator.cli.options import GridName, SetValues, StoreSettings, with_options
from orchestrator.core.settings import RunSettings
from orchestrator.util.console import print_note
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.grid import Grid
    from orchestrator.planning.plan import Plan
    from orchestrator.store import Store
    from orchestrator.tracks import MetricName


@dataclass(frozen=True)
class Workspace:
    """The grid, catalog, store and settings of a command about a grid.

    Attributes:
        grid: the cells to measure, with their labels.
        catalog: every dataset, domain and backbone that the grid may name.
        store: the store of artifacts and results.
        settings: paths, threads and the device. No setting changes a number.
        overrides: the values of ``--set`` with which the grid was read.
    """

    grid: Grid
    catalog: Catalog
    store: Store
    settings: RunSettings
    overrides: Sequence[str] = ()

    def plan(self, *, retry_failed: bool = False) -> Plan:
        """Compare the grid with the store, and return the plan. ``retry_failed``: whether failed cells are open too."""
        from orchestrator.planning.plan import make_plan

        return make_plan(self.grid, self.catalog, self.store, self.settings.data_folder, retry_failed=retry_failed)

    def results_plan(self, metric: MetricName | None = None) -> Plan:
        """Return the plan with the outcomes of the grid's cells, without the artifacts that a run would build.

        If the last run was a race, which stops measuring methods that cannot be the best any more, the plan has races.
        ``metric``: the metric by which methods are compared; ``None`` for the metric of the grid or of its tracks.
        """
        from orchestrator.planning.plan import results_plan
        from orchestrator.progress.status_file import last_run, was_raced

        raced = was_raced(last_run(self.store.files, self.grid.given), self.grid.race)
        read = replace(self.grid, metric=metric or self.grid.metric)
        return results_plan(read, self.catalog, self.store, self.settings.data_folder, raced=raced)


def open_workspace(
    grid: str,
    settings: RunSettings,
    *,
    only: list[str] | None = None,
    overrides: list[str] | None = None,
    limit: int | None = None,
) -> Workspace:
    """Read the catalog and the grid, open the store, and return the workspace.

    ``overrides``: values of ``--set``. A command that reads results takes them from :func:`results_overrides`.

    Raises ``UserError`` for an invalid grid, catalog file or option, and for a store in the folder of a dataset.
    """
    from orchestrator.catalog import dataset_folder
    from orchestrator.sharing.grid_listing import expand_grid
    from orchestrator.store import Store

    parsed, loaded = expand_grid(grid, settings, overrides or (), only or (), limit)
    opened, root = Store(settings.store_url), settings.data_folder
    for entry in parsed.datasets.values() if opened.files.is_local and root is not None else ():
        images = dataset_folder(entry, root).absolute()
        if not entry.is_bundled and Path(opened.files.root).absolute().is_relative_to(images):
            what = f"the store {opened.url} is inside the folder of dataset {entry.name}, {images}"
            raise UserError(what, where="--store", hint="give a folder outside of the dataset's folder")
    return Workspace(parsed, loaded, opened, settings, overrides or ())


def results_overrides(grid: str, settings: RunSettings, given: list[str] | None) -> list[str]:
    """Return the values of ``--set`` for a command that reads results: the given values, or those of the last run.

    Print a note if values of the last run are used, and another note if a different grid file of that name ran last.
    """
    from orchestrator.progress.status_file import namesake, read_status, set_values
    from orchestrator.store import Store

    last = read_status(Store(settings.store_url).files, Path(grid).stem)
    if other := namesake(last, grid):
        print_note(f"the last run under that name in {settings.store_url} used another grid file, {other}")
    values = set_values(None if other else last, given)
    if values and given is None:
        same = shlex.join(word for value in values for word in ("--set", value))
        print_note(f"{same} is taken from the last run of {Path(grid).stem}; give --set '' to use none")
    return values


def open_results(grid: GridName, set_: SetValues = None, *, settings: StoreSettings) -> Workspace:
    """Return the workspace of a command that reads results; print a note if files of the grid are absent."""
    from orchestrator.sharing.grid_listing import absent_files

    opened = open_workspace(grid, settings, overrides=results_overrides(grid, settings, set_))
    print_note(absent_files(opened.grid, settings.data_folder))
    return opened


ResultsWorkspace = Annotated[Workspace, with_options(open_results)]
