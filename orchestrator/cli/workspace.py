"""What a command works on: a grid, the catalog, a store, the settings and the folder of datasets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.catalog import Catalog, load_catalog
from orchestrator.cli.options import run_settings
from orchestrator.core.cell import SourceRef
from orchestrator.core.settings import RunSettings
from orchestrator.store import CorruptArtifact, Store

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
    opened = Store(settings.store_url)
    parsed = load_grid(
        grid,
        loaded,
        only=only or (),
        set_=overrides or (),
        limit=limit,
        data_root=root,
        gain_of=partial(_source_gain, opened),
    )
    return Workspace(parsed, loaded, opened, settings, root)


def _source_gain(store: Store, backbone: str, source: SourceRef) -> float | None:
    """What a stored source model gained on its own task, in points; ``None`` if it is not built or not measured."""
    from orchestrator.artifacts.source_model import source_address

    try:
        built = store.artifact(source_address(backbone, source))
    except CorruptArtifact:
        return None
    if built is None or "accuracy_fine_tuned" not in built.meta:
        return None
    return float(built.meta["accuracy_fine_tuned"] - built.meta["accuracy_zero_shot"])
