"""Fetching a dataset's files. Only ``data prepare`` and ``data add hf:`` call this code.

``download`` and ``unpack`` know nothing of datasets. ``by_archive``, ``by_torchvision`` and ``by_hub`` each fetch the
files of one kind of route. A new kind is one module here and one entry in ``FETCHERS``. If its server can state
the size of a download, ``download_size`` needs a case, too.
"""

from collections.abc import Callable
from contextlib import suppress

from orchestrator.catalog import DatasetEntry
from orchestrator.catalog.routes import ArchiveRoute, HuggingFaceRoute
from orchestrator.datasets.fetching.by_archive import fetch_archive
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, hub_size
from orchestrator.datasets.fetching.by_torchvision import fetch_by_torchvision
from orchestrator.datasets.fetching.download import announced_size
from orchestrator.datasets.state import Fetched, StagingArea
from orchestrator.util.errors import UserError

FETCHERS: dict[str, Callable[[DatasetEntry, StagingArea], Fetched]] = {
    "archive": fetch_archive,
    "torchvision": fetch_by_torchvision,
    "huggingface": fetch_from_hub,
}
"""Kind of a route -> the function that fetches all files into a staging area."""


def download_size(entry: DatasetEntry) -> int | None:
    """Return the bytes to fetch, as the catalog or else the server states them; ``None`` if neither does."""
    if entry.download_bytes is not None:
        return entry.download_bytes
    if isinstance(entry.route, ArchiveRoute):
        return announced_size(entry.route.url)
    if isinstance(entry.route, HuggingFaceRoute):
        with suppress(UserError):
            return hub_size(entry)
    return None
