"""The ids and labels of a grid's cells, in this machine's cache.

Expanding a grid imports every method, and with them PyTorch, which takes seconds. A command that only reads results
needs no more than the ids. A cached listing is used while everything it was made from is the same. The project's code
and grids, the grid's own files, the catalog files and the backbones' weights are compared by size and modification
time, the datasets by their identity. A grid with ``min_gain`` is expanded every time, because its cells depend on the
source models in the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.analysis.rows import labels_of
from orchestrator.catalog import dataset_ref, load_catalog
from orchestrator.catalog.location import grids_folder
from orchestrator.catalog.references import weights_path
from orchestrator.core.settings import RunSettings
from orchestrator.store import Store
from orchestrator.store.files import Files, cache_folder
from orchestrator.util.errors import UserError

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog, DatasetEntry
    from orchestrator.grid import Grid

_PROJECT = Path(__file__).resolve().parents[2]
CACHED_LISTINGS = 50
"""Number of listings in the cache; older ones are removed."""


@dataclass(frozen=True)
class GridListing:
    """A grid's cells. ``labels``: cell id -> the name of its method in tables, in the order of the grid file."""

    name: str
    title: str
    labels: Mapping[str, str]


def list_grid(grid: str, settings: RunSettings, overrides: Sequence[str] = ()) -> GridListing:
    """Return the cells of a grid, from the cache if nothing has changed, otherwise by expanding the grid.

    ``grid``: its name or the path of its file; ``overrides``: values of ``--set``. Raises ``UserError`` for a grid or a
    catalog that is wrong.
    """
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, UserError):  # expanding says what is wrong
        record = json.loads(Files(cache_folder()).read(_key(grid, settings, overrides)))
        made_from = record["made_from"]
        datasets = made_from["datasets"]
        known = load_catalog(settings.catalog_files).datasets if datasets else {}
        if made_from == _made_from(made_from["files"], {name: known[name] for name in datasets}, settings.data_folder):
            return GridListing(record["name"], record["title"], record["labels"])
    return cache_listing(grid, *expand_grid(grid, settings, overrides), settings, overrides)


def expand_grid(
    grid: str | os.PathLike[str], settings: RunSettings, overrides: Sequence[str] = ()
) -> tuple[Grid, Catalog]:
    """Return a grid with all its cells, and the catalog.

    The store knows the gains that a grid with ``min_gain`` asks for.
    """
    from orchestrator.artifacts.source_model import source_gain
    from orchestrator.grid import load_grid

    catalog, gain_of = load_catalog(settings.catalog_files), partial(source_gain, Store(settings.store_url))
    return load_grid(grid, catalog, set_=overrides, data_root=settings.data_folder, gain_of=gain_of), catalog


def cache_listing(
    source: str, grid: Grid, catalog: Catalog, settings: RunSettings, overrides: Sequence[str] = ()
) -> GridListing:
    """Write a grid's listing into the cache, if that can be written, and return it.

    ``source``: the name or path that ``grid`` was loaded by, with all its cells.
    """
    from orchestrator.grid.load import grid_files

    listing = GridListing(grid.name, grid.title, labels_of(grid.cells, grid.label))
    files = grid_files(source)
    if any("min_gain" in text for text in (*overrides, *(path.read_text(encoding="utf-8") for path in files))):
        return listing
    files += map(Path, settings.catalog_files)
    files += [path for entry in catalog.backbones.values() if (path := weights_path(entry)) is not None]
    datasets = {name: entry for name, entry in grid.datasets.items() if not entry.is_bundled}
    made_from = _made_from([str(path.absolute()) for path in files], datasets, settings.data_folder)
    with contextlib.suppress(OSError):
        cache = Files(cache_folder())
        content = json.dumps({"made_from": made_from, **asdict(listing)}).encode()
        cache.write(_key(source, settings, overrides), content)
        listed = cache.versions("grids")
        for name in sorted(listed, key=lambda name: listed[name].written)[:-CACHED_LISTINGS]:
            cache.remove(f"grids/{name}")
    return listing


def _key(grid: str, settings: RunSettings, overrides: Sequence[str]) -> str:
    """Return the name of a listing in the cache."""
    path = str(Path(grid).absolute()) if grid.endswith((".yaml", ".yml")) or os.sep in grid else grid
    files = [str(Path(file).absolute()) for file in settings.catalog_files]
    text = json.dumps([path, files, str(settings.data_folder), list(overrides), str(_PROJECT)])
    return f"grids/{hashlib.sha256(text.encode()).hexdigest()}.json"


def _made_from(files: Iterable[str], datasets: Mapping[str, DatasetEntry], data_root: Path | None) -> dict[str, Any]:
    """Return the state of everything a listing depends on: the project, the grid's other files, and its own datasets.

    The digest of a dataset stands for it in the identity of cells: a new image in a folder changes it.
    """
    folders = (_PROJECT / "bolt", _PROJECT / "orchestrator", grids_folder())
    project = sorted((path, _state(path)) for folder in folders for path in _files(folder))
    return {
        "project": hashlib.sha256(json.dumps(project).encode()).hexdigest(),
        "files": {path: _state(path) for path in files},
        "datasets": {name: dataset_ref(entry, data_root).digest for name, entry in datasets.items()},
    }


def _state(path: str) -> list[int]:
    """Size and modification time in nanoseconds of a file; empty if it does not exist."""
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return [found.st_size, found.st_mtime_ns]
    return []


def _files(folder: Path) -> Iterator[str]:
    """Return the files of a folder and its sub-folders, without compiled ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (os.path.join(place, name) for name in names)
