"""Fetching a dataset's files. Only ``data prepare`` and ``data add hf:`` call this code.

``download`` and ``unpack`` know nothing of datasets. ``by_archive``, ``by_torchvision`` and ``by_hub`` each fetch the
files of one kind of route. A new kind is one module here and one entry in ``FETCHERS``.
"""

from collections.abc import Callable
from typing import NamedTuple

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.fetching.by_archive import archive_size, fetch_archive
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, hub_size
from orchestrator.datasets.fetching.by_torchvision import fetch_by_torchvision
from orchestrator.datasets.state import Fetched, StagingArea


class Fetcher(NamedTuple):
    """How the files of one kind of route are fetched.

    Attributes:
        fetch: fetches all files into a staging area.
        space: disk space per fetched byte; 2 where an archive is kept until its unpacked files are complete.
        size: asks a server for the size of the download in bytes, for a catalog entry that does not state the size.
    """

    fetch: Callable[[DatasetEntry, StagingArea], Fetched]
    space: int
    size: Callable[[DatasetEntry], int | None] = lambda entry: None


FETCHERS = {
    "archive": Fetcher(fetch_archive, 2, archive_size),
    "torchvision": Fetcher(fetch_by_torchvision, 2),
    "huggingface": Fetcher(fetch_from_hub, 1, hub_size),
}
"""Kind of a route -> how its files are fetched."""
