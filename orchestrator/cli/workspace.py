"""What a command works on: a grid, the catalog, a store, the settings and the folder of datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.settings import RunSettings
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.grid import Grid
    from orchestrator.planning.plan import Plan
    from orchestrator.store import Store


@dataclass(frozen=True)
class Workspace:
    """What a command about a grid works on.

    Attributes:
        grid: the cells to measure, with the names that people gave them.
        catalog: every dataset, domain and backbone that the grid may name.
        store: where artifacts and results are kept.
        settings: where things are and what to compute with; nothing in it changes a number.
        overrides: the values of ``--set``.
        whole: the grid with the cells of earlier runs on other datasets (``--set datasets=``), which its report and
            its runs in MLflow are about.
    """

    grid: Grid
    catalog: Catalog
    store: Store
    settings: RunSettings
    overrides: tuple[str, ...]
    whole: Grid

    def plan(self, *, whole: bool = False, retry_failed: bool = False) -> Plan:
        """Compare the grid, or the whole one, with the store as it is now. Failed cells count as open if retried."""
        from orchestrator.planning.plan import make_plan

        grid = self.whole if whole else self.grid
        return make_plan(grid, self.catalog, self.store, self.settings.data_folder, retry_failed=retry_failed)


def open_workspace(
    grid: str,
    settings: RunSettings,
    *,
    only: list[str] | None = None,
    overrides: list[str] | None = None,
    limit: int | None = None,
) -> Workspace:
    """Read the catalog and the grid, and open the store.

    Raises ``UserError`` for a grid, a catalog file or an option that is wrong.
    """
    from orchestrator.artifacts.source_model import source_gain
    from orchestrator.catalog import load_catalog
    from orchestrator.grid import load_grid
    from orchestrator.store import Store

    loaded, opened = load_catalog(settings.catalog_files), Store(settings.store_url)
    given = tuple(overrides or ())
    load = partial(load_grid, grid, loaded, data_root=settings.data_folder)
    parsed = load(only=only or (), set_=given, limit=limit, gain_of=partial(source_gain, opened))
    _check_store_place(parsed, opened, settings.data_folder)
    whole = parsed
    for earlier in earlier_runs(opened, parsed.name, given):
        with suppress(UserError):  # a dataset that the catalog does not have any more
            whole = whole.including(load(set_=earlier))
    return Workspace(parsed, loaded, opened, settings, given, whole)


def _check_store_place(grid: Grid, store: Store, root: Path | None) -> None:
    """Raise ``UserError`` if the store is in the folder of a dataset's images."""
    from orchestrator.catalog import dataset_folder

    for entry in grid.datasets.values() if store.files.is_local and root is not None else ():
        images = dataset_folder(entry, root).absolute()
        if not entry.is_bundled and Path(store.files.root).absolute().is_relative_to(images):
            raise UserError(
                f"the store {store.url} lies in the images of dataset {entry.name}, {images}",
                where="--store",
                hint="give a folder of its own",
            )


def remember_run(store: Store, grid: str, overrides: Sequence[str]) -> None:
    """Note in the store on which datasets a grid was run, if ``--set datasets=`` or ``--set domains=`` names them."""
    if _chosen_data(overrides):
        runs = [*earlier_runs(store, grid, overrides), list(overrides)]
        store.files.write(f"grids/{grid}.json", json.dumps(runs, indent=1).encode())


def _chosen_data(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that choose the datasets."""
    return [option for option in overrides if option.partition("=")[0].strip() in ("datasets", "domains")]


def earlier_runs(store: Store, grid: str, overrides: Sequence[str] = ()) -> list[list[str]]:
    """Return the values of ``--set`` of earlier runs of a grid on other datasets than those of ``overrides``."""
    try:
        stored = json.loads(store.files.read(f"grids/{grid}.json"))
        runs = [[str(option) for option in run] for run in stored]
    except (FileNotFoundError, ValueError, TypeError):
        return []
    return [run for run in runs if _chosen_data(run) != _chosen_data(overrides)]
