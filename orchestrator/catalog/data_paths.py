"""Where datasets lie under the data root: ``ROOT/NAME``, what stands beside it, and which images are left out."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.routes import FolderRoute, ManifestRoute
from orchestrator.util.errors import UserError

DATA_VARIABLE = "BOLT_DATA"
"""Environment variable that names the data root where no ``--data-root`` is given."""

BUNDLED_ROUTES = ("toy", "sklearn")
"""Routes whose images come with the project and its dependencies."""


def find_data_root(option: Path | str | None) -> Path | None:
    """The folder of real datasets: the option, else ``BOLT_DATA``, else none."""
    chosen = option or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def dataset_folder(entry: DatasetEntry, data_root: Path | None) -> Path:
    """The folder a dataset's files are in: its route's own, else the one of its name. Drawn datasets look at none."""
    folder = entry.route.folder if isinstance(entry.route, FolderRoute | ManifestRoute) else entry.name
    return (data_root or Path()) / folder


def partial_folder(entry: DatasetEntry, data_root: Path) -> Path:
    """Where a dataset is put together: a data root of its own, so that it can be opened before it counts."""
    return data_root / f"{entry.name}.partial"


def excluded_file(entry: DatasetEntry, data_root: Path) -> Path:
    """The list of a dataset's images that are left out, one ``origin TAB reason`` a line."""
    return data_root / f"{entry.name}.excluded.txt"


def excluded_images(entry: DatasetEntry, data_root: Path | None) -> dict[str, str]:
    """Origin -> reason of every image that is left out; empty where there is no list.

    Raises ``UserError`` for a list that cannot be read.
    """
    if data_root is None or entry.route.kind in BUNDLED_ROUTES:
        return {}
    path = excluded_file(entry, data_root)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list of images to leave out cannot be read: {error}", where=str(path)) from None
    lines = (line.partition("\t") for line in text.splitlines() if line.strip())
    return {origin: reason for origin, _, reason in lines}
