"""The ids and labels of a grid's cells, which ``grid`` writes into the store at the end of a run.

Expanding a grid imports every method and PyTorch, which takes two seconds. A command that only reads results needs only
the ids and labels. A listing is valid as long as everything that it was made from is unchanged: the project's code and
grids, the grid's files, the catalog files and the backbones' weights (compared by size and modification time), and the
datasets (compared by identity).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel

from bolt.clip.checkpoint_files import UnreadableCheckpoint, checkpoint_files
from bolt.util.outside import outside_packages
from orchestrator.catalog import dataset_ref, load_catalog, missing_data, missing_weights
from orchestrator.catalog.location import grids_folder
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store
from orchestrator.tracks import MetricName
from orchestrator.util.errors import UserError
from orchestrator.util.units import listed

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog, DatasetEntry
    from orchestrator.grid import Grid

_PROJECT = Path(__file__).resolve().parents[2]


class GridListing(BaseModel, frozen=True):
    """A grid's cells.

    Attributes:
        labels: cell id -> label of the cell's method in tables, in the order of the grid file.
        options: the name or path of the grid, the catalog files, the data root, the values of ``--set``, and the
            versions of the packages that add methods or catalog files.
        files: path -> size and modification time of each file that the listing was made from.
        datasets: name -> identity of each dataset whose images do not come with the project.
        metric: the metric by which methods are compared; ``None`` for the metric of each track.
        absent: the sentence of :func:`absent_files`.
    """

    name: str
    title: str
    labels: dict[str, str]
    options: list[str] = []
    files: dict[str, str] = {}
    datasets: dict[str, str] = {}
    metric: MetricName | None = None
    absent: str = ""


def list_grid(grid: str, settings: RunSettings, overrides: Sequence[str] = ()) -> GridListing:
    """Return the cells of a grid: the listing of the last run or, if that is not valid any more, a new one.

    ``grid``: the grid's name or the path of its file; ``overrides``: values of ``--set``. Raises ``UserError`` if the
    grid or the catalog is not valid.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, UserError):  # the expansion below reports what is wrong
        found = GridListing.model_validate_json(Store(settings.store_url).files.read(_name(grid)))
        known = load_catalog(settings.catalog_files).datasets if found.datasets else {}
        if (
            found.options == _options(grid, settings, overrides)
            and all(_state(path) == state for path, state in found.files.items())
            and found.datasets == _identities((known[name] for name in found.datasets), settings)
        ):
            return found
    loaded, _ = expand_grid(grid, settings, overrides)
    labels = {cell.id: loaded.label(cell) for cell in loaded.cells}
    absent = absent_files(loaded, settings.data_folder)
    return GridListing(name=loaded.name, title=loaded.title, labels=labels, metric=loaded.metric, absent=absent)


def absent_files(grid: Grid, data_root: Path | None) -> str:
    """Return a sentence about images and weights of the user that are not there; empty if all are there.

    They are part of the identity of cells. So without them the results of these cells are not found.
    """
    images = [entry.name for entry in grid.datasets.values() if entry.is_own and missing_data(entry, data_root)]
    weights = [entry.name for entry in grid.backbones.values() if missing_weights(entry)]
    where = f"in {data_root}" if data_root else "there"
    what = [f"the images of {listed(images, 4)} are not {where}"] * bool(images)
    what += [f"the weights of {listed(weights, 4)} are not there"] * bool(weights)
    advice = ": give the data root that they were measured with (--data-root PATH)" if images else ""
    return f"{' and '.join(what)}, and without them their results are not found{advice}" if what else ""


def write_listing(
    source: str, grid: Grid, catalog: Catalog, settings: RunSettings, overrides: Sequence[str] = ()
) -> None:
    """Write the listing of a loaded grid, with all of its cells, to the store. ``source``: the grid's name or path."""
    from orchestrator.grid.load import grid_files

    files = [*grid_files(source), *map(Path, settings.catalog_files)]
    for path in [path for entry in catalog.backbones.values() if (path := entry.weights.path) is not None]:
        files.append(path)
        with contextlib.suppress(UnreadableCheckpoint):  # of a backbone that the grid does not use
            files += checkpoint_files(path)
    folders = (_PROJECT / "bolt", _PROJECT / "orchestrator", grids_folder())
    files += [path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc"]
    listing = GridListing(
        name=grid.name,
        title=grid.title,
        labels={cell.id: grid.label(cell) for cell in grid.cells},
        options=_options(source, settings, overrides),
        files={str(path.absolute()): _state(path) for path in files},
        datasets=_identities((entry for entry in grid.datasets.values() if not entry.is_bundled), settings),
        metric=grid.metric,
    )
    with contextlib.suppress(OSError):  # a listing is not needed, it only saves later commands two seconds
        Store(settings.store_url).files.write(_name(source), listing.model_dump_json().encode())


def expand_grid(
    grid: str | os.PathLike[str],
    settings: RunSettings,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    limit: int | None = None,
) -> tuple[Grid, Catalog]:
    """Return a grid, and the catalog that it was read with. ``overrides``, ``only``, ``limit``: see ``load_grid``.

    For a grid with ``min_gain``, the gains of its source models are read from the store.
    """
    from orchestrator.artifacts.source_model import source_gain
    from orchestrator.grid import load_grid

    catalog, gain_of = load_catalog(settings.catalog_files), partial(source_gain, Store(settings.store_url))
    loaded = load_grid(
        grid, catalog, only=only, set_=overrides, limit=limit, data_root=settings.data_folder, gain_of=gain_of
    )
    return loaded, catalog


def _name(grid: str) -> str:
    return f"status/{Path(grid).stem}.cells"


def _options(grid: str, settings: RunSettings, overrides: Sequence[str]) -> list[str]:
    return [
        str(Path(grid).absolute()) if Path(grid).suffix else grid,
        *settings.data_options,
        *overrides,
        *map(str, outside_packages().items()),
        str(_PROJECT),
    ]


def _identities(entries: Iterable[DatasetEntry], settings: RunSettings) -> dict[str, str]:
    """Return name of a dataset -> its digest in the identities of cells. A new image in a folder changes the digest."""
    return {entry.name: dataset_ref(entry, settings.data_folder).digest for entry in entries}


def _state(path: str | Path) -> str:
    """Return the size and the modification time (ns) of a file; empty if it does not exist."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return f"{found.st_size} {found.st_mtime_ns}"
    return ""
