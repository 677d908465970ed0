"""Getting a dataset's files: the only code that reaches the network for data, called by ``data prepare`` alone.

``download`` and ``unpack`` know nothing of datasets; ``by_archive``, ``by_torchvision`` and ``by_hub`` fill a folder by
one kind of route each. A new kind is one module here and one entry in ``FETCHERS``.
"""

from collections.abc import Callable

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.fetching.by_archive import archive_size, fetch_archive
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, hub_size
from orchestrator.datasets.fetching.by_torchvision import fetch_by_torchvision
from orchestrator.datasets.fetching.staging import FetchResult, StagingArea

FETCHERS: dict[str, Callable[[DatasetEntry, StagingArea], FetchResult]] = {
    "archive": fetch_archive,
    "torchvision": fetch_by_torchvision,
    "huggingface": fetch_from_hub,
}

SIZES: dict[str, Callable[[DatasetEntry], int | None]] = {"archive": archive_size, "huggingface": hub_size}
"""Who can be asked how large a download is, where the catalog does not say."""

SPACE_PER_BYTE = {"archive": 2.0, "torchvision": 2.0, "huggingface": 1.0}
"""Disk needed per byte fetched: an archive stands beside what is unpacked from it until that is whole."""
