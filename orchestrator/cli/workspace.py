"""What a command works on: a grid, the catalog, a store, the settings and the folder of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.cli.options import run_settings

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.core.settings import RunSettings
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
    """Read the catalog and the grid, and open the store.

    Args:
        grid: the name of a grid, or the path of a grid file.
        store: folder or URL of the store.
        data_root: folder of the datasets; ``BOLT_DATA`` where it is ``None``.
        catalog: catalog files of the user's own, beside the shipped ones.
        only, overrides, limit: the values of ``--only``, ``--set`` and ``--limit``.
        threads, device: what a cell computes with.

    Raises:
        UserError: for a grid, a catalog file or an option that is wrong.
    """
    from orchestrator.catalog import find_data_root, load_catalog
    from orchestrator.grid import load_grid
    from orchestrator.store import Store

    root = find_data_root(data_root)
    loaded = load_catalog(catalog or ())
    settings = run_settings(store, data_root, catalog, threads, device)
    parsed = load_grid(grid, loaded, only=only or (), set_=overrides or (), limit=limit, data_root=root)
    return Workspace(parsed, loaded, Store(settings.store_url), settings, root)
