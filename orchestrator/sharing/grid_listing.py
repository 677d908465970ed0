"""The ids and labels of a grid's cells, kept in this machine's cache.

Expanding a grid imports every method, and with them PyTorch, which takes seconds. A command that only reads results
needs no more than the ids. A kept listing is used while everything it was made from has the same size and modification
time: the project's code and grids, the grid's own files, the catalog files and the backbones' weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.analysis.rows import labels_of
from orchestrator.catalog.location import grids_folder
from orchestrator.store.files import Files
from orchestrator.store.node_cache import cache_folder

if TYPE_CHECKING:
    from orchestrator.catalog import Catalog
    from orchestrator.grid import Grid

_PROJECT = Path(__file__).resolve().parents[2]
KEPT_LISTINGS = 50
"""Number of listings in the cache; older ones are removed."""

FileState = tuple[int, int]
"""Size, and modification time in nanoseconds."""


@dataclass(frozen=True)
class GridListing:
    """The cells of a grid.

    Attributes:
        name: of the grid.
        labels: cell id -> the name of its method in tables, in the order of the grid file.
    """

    name: str
    labels: Mapping[str, str]


def list_grid(grid: str, catalog_files: Sequence[str] = (), data_root: Path | None = None) -> GridListing:
    """The cells of a grid, from the cache if nothing has changed, otherwise by expanding the grid.

    Args:
        grid: a grid's name or the path of its file.
        catalog_files: catalog files of the user.
        data_root: the folder of the user's datasets.

    Raises ``UserError`` for a grid or a catalog that is wrong.
    """
    kept = _kept(_key(grid, catalog_files, data_root))
    if kept is not None:
        return kept
    from orchestrator.catalog import load_catalog
    from orchestrator.grid import load_grid

    catalog = load_catalog(catalog_files)
    loaded = load_grid(grid, catalog, data_root=data_root)
    return keep_listing(grid, loaded, catalog, catalog_files, data_root)


def keep_listing(
    source: str, grid: Grid, catalog: Catalog, catalog_files: Sequence[str] = (), data_root: Path | None = None
) -> GridListing:
    """Write a grid's listing into the cache, and return it. A cache that cannot be written is left alone.

    Nothing is kept for a grid with images below the data root, because a new file there changes the cells.

    Args:
        source: the name or path that ``grid`` was loaded by, in full.
    """
    from orchestrator.catalog import BUNDLED_ROUTES
    from orchestrator.catalog.references import weights_path
    from orchestrator.grid.load import grid_files

    listing = GridListing(grid.name, labels_of(grid.cells, grid.label))
    if data_root is not None and any(entry.route.kind not in BUNDLED_ROUTES for entry in grid.datasets.values()):
        return listing
    files = [*grid_files(source), *map(Path, catalog_files)]
    files += [weights_path(entry) for entry in catalog.backbones.values() if entry.weights.file is not None]
    states = {str(path.absolute()): _state(path) for path in files}
    record = {"project": _project_state(), "files": states, **asdict(listing)}
    with contextlib.suppress(OSError):
        cache = Files(cache_folder())
        cache.write(_key(source, catalog_files, data_root), json.dumps(record).encode())
        kept = cache.versions("grids")
        for name in sorted(kept, key=lambda name: kept[name].written)[:-KEPT_LISTINGS]:
            cache.remove(f"grids/{name}")
    return listing


def _key(grid: str, catalog_files: Sequence[str], data_root: Path | None) -> str:
    """The name of a listing in the cache."""
    path = str(Path(grid).absolute()) if grid.endswith((".yaml", ".yml")) or os.sep in grid else grid
    text = json.dumps([path, [str(Path(file).absolute()) for file in catalog_files], str(data_root), str(_PROJECT)])
    return f"grids/{hashlib.sha256(text.encode()).hexdigest()}.json"


def _kept(key: str) -> GridListing | None:
    """The listing in the cache; ``None`` if there is none, or if something has changed since it was made."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        record = json.loads(Files(cache_folder()).read(key))
        unchanged = all(_state(Path(path)) == tuple(state or ()) for path, state in record["files"].items())
        if unchanged and record["project"] == _project_state():
            return GridListing(record["name"], record["labels"])
    return None


def _state(path: Path) -> FileState | tuple[()]:
    """Size and modification time of a file; empty if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_size, found.st_mtime_ns


def _project_state() -> str:
    """A digest of the names, sizes and modification times of the project's code, grids and catalog."""
    folders = (_PROJECT / "bolt", _PROJECT / "orchestrator", grids_folder())
    states = sorted((str(path), *_state(path)) for folder in folders for path in _files(folder))
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files of a folder and its sub-folders, without compiled ones."""
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(place, name) for name in names)
