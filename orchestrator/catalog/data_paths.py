"""Where the images of datasets are under the data root, and which images are excluded."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.routes import FolderRoute, ManifestRoute
from orchestrator.util.errors import UserError

DATA_VARIABLE = "BOLT_DATA"
"""Environment variable of the data root, read if no ``--data-root`` is given."""


def find_data_root(option: Path | str | None) -> Path | None:
    """The data root: the option, else ``BOLT_DATA``, else ``None``."""
    chosen = option or os.environ.get(DATA_VARIABLE)
    return Path(chosen).expanduser() if chosen else None


def dataset_folder(entry: DatasetEntry, data_root: Path | None) -> Path:
    """The folder of a dataset's files: the one that its route names, else ``data_root/<name>``."""
    folder = entry.route.folder if isinstance(entry.route, FolderRoute | ManifestRoute) else entry.name
    return (data_root or Path()) / folder


def partial_folder(entry: DatasetEntry, data_root: Path) -> Path:
    """The folder in which a dataset is prepared. It is a data root of its own, so the dataset can be read there."""
    return data_root / f"{entry.name}.partial"


def excluded_file(name: str, data_root: Path) -> Path:
    """The list of a dataset's excluded images: ``origin TAB reason``, one a line."""
    return data_root / f"{name}.excluded.txt"


def excluded_images(entry: DatasetEntry, data_root: Path | None) -> dict[str, str]:
    """Origin -> reason of every excluded image; empty if there is no list. Raises ``UserError`` if it is unreadable."""
    if data_root is None or entry.is_bundled:
        return {}
    path = excluded_file(entry.name, data_root)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"the list of images to leave out cannot be read: {error}", where=str(path)) from None
    lines = (line.partition("\t") for line in text.splitlines() if line.strip())
    return {origin: reason for origin, _, reason in lines}
