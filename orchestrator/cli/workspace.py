"""What a command works on: a grid, the catalog, a store, the settings and the folder of datasets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import run_settings
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
        data_root: folder of the datasets, ``None`` where none was given.
        overrides: the values of ``--set``.
        earlier: the same grid as it was run on other datasets (``--set datasets=``) before, if it was.
    """

    grid: Grid
    catalog: Catalog
    store: Store
    settings: RunSettings
    data_root: Path | None
    overrides: tuple[str, ...] = ()
    earlier: Grid | None = None

    @property
    def whole(self) -> Grid:
        """The grid with the cells of earlier runs: what its report and its runs in MLflow are about."""
        return self.grid if self.earlier is None else self.grid.including(self.earlier)

    def whole_plan(self) -> Plan:
        """Compare the grid and the cells of earlier runs with the store."""
        from orchestrator.planning.plan import make_plan

        return make_plan(self.whole, self.catalog, self.store, self.data_root)

    def plan(self, *, retry_failed: bool = False) -> Plan:
        """Compare the grid with the store as it is now. With ``retry_failed``, failed cells count as open."""
        from orchestrator.planning.plan import make_plan

        return make_plan(self.grid, self.catalog, self.store, self.data_root, retry_failed=retry_failed)


def open_workspace(
    grid: str,
    store: str,
    data_root: Path | None,
    catalog: list[Path] | None,
    *,
    only: list[str] | None = None,
    overrides: list[str] | None = None,
    limit: int | None = None,
    threads: int = 1,
    device: str | None = None,
    cuda_graphs: bool = False,
) -> Workspace:
    """Read the catalog and the grid, and open the store, from the values of a command's options.

    Raises ``UserError`` for a grid, a catalog file or an option that is wrong.
    """
    from orchestrator.artifacts.source_model import source_gain
    from orchestrator.catalog import load_catalog
    from orchestrator.grid import load_grid
    from orchestrator.store import Store

    settings = run_settings(store, data_root, catalog, threads, device, cuda_graphs)
    root = Path(settings.data_root) if settings.data_root else None
    loaded = load_catalog(catalog or ())
    opened = Store(settings.store_url)
    parsed = load_grid(
        grid,
        loaded,
        only=only or (),
        set_=overrides or (),
        limit=limit,
        data_root=root,
        gain_of=partial(source_gain, opened),
    )
    _check_store_place(parsed, opened, root)
    given = tuple(overrides or ())
    earlier = _earlier_grid(grid, loaded, root, earlier_runs(opened, parsed.name, given))
    return Workspace(parsed, loaded, opened, settings, root, given, earlier)


def _check_store_place(grid: Grid, store: Store, root: Path | None) -> None:
    """Raises ``UserError`` if the store is in the folder of a dataset's images."""
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
        earlier = earlier_runs(store, grid, overrides)
        store.files.write(_runs_file(grid), json.dumps([*earlier, list(overrides)], indent=1).encode())


def _runs_file(grid: str) -> str:
    return f"grids/{grid}.json"


def _chosen_data(overrides: Sequence[str]) -> list[str]:
    """The overrides that choose the datasets."""
    return [option for option in overrides if option.partition("=")[0].strip() in ("datasets", "domains")]


def earlier_runs(store: Store, grid: str, overrides: Sequence[str] = ()) -> list[list[str]]:
    """The values of ``--set`` of earlier runs of a grid on other datasets than those of ``overrides``."""
    try:
        stored = json.loads(store.files.read(_runs_file(grid)))
        runs = [[str(option) for option in run] for run in stored]
    except (FileNotFoundError, ValueError, TypeError):
        return []
    return [run for run in runs if _chosen_data(run) != _chosen_data(overrides)]


def _earlier_grid(name: str, catalog: Catalog, root: Path | None, runs: Sequence[Sequence[str]]) -> Grid | None:
    """The cells of earlier runs in one grid; without those of datasets that the catalog does not have any more."""
    from orchestrator.grid import load_grid

    found: Grid | None = None
    for overrides in runs:
        try:
            one = load_grid(name, catalog, set_=overrides, data_root=root)
        except UserError:
            continue
        found = one if found is None else one.including(found)
    return found
