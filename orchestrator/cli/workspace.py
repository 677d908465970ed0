"""What a command works on: a grid, the catalog, a store, the settings and the folder of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.cli.options import run_settings
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store

if TYPE_CHECKING:
    from orchestrator.grid import Grid
    from orchestrator.planning.plan import Plan


@dataclass(frozen=True)
class Workspace:
    """What a command about a grid works on.

    Attributes:
        grid: the cells to measure, with the names that people gave them.
        catalog: every dataset, domain and backbone that the grid may name.
        store: where artifacts and results are kept.
        settings: where things are and what to compute with; nothing in it changes a number.
        data_root: folder of the datasets, ``None`` where none was given.
    """

    grid: Grid
    catalog: Catalog
    store: Store
    settings: RunSettings
    data_root: Path | None

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
) -> Workspace:
    """Read the catalog and the grid, and open the store, from the values of a command's options.

    Raises ``UserError`` for a grid, a catalog file or an option that is wrong.
    """
    from orchestrator.grid import load_grid

    settings = run_settings(store, data_root, catalog, threads, device)
    root = Path(settings.data_root) if settings.data_root else None
    loaded = load_catalog(catalog or ())
    parsed = load_grid(grid, loaded, only=only or (), set_=overrides or (), limit=limit, data_root=root)
    return Workspace(parsed, loaded, Store(settings.store_url), settings, root)
