"""Fetching a dataset's files. Only ``data prepare`` and ``data add hf:`` call this code.

``download`` and ``unpack`` know nothing of datasets; ``by_archive``, ``by_torchvision`` and ``by_hub`` fetch the
files of one kind of route each. A new kind is one module here and one entry in ``FETCHERS``.
"""

from collections.abc import Callable

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.fetching.by_archive import archive_size, fetch_archive
from orchestrator.datasets.fetching.by_hub import fetch_from_hub, hub_size
from orchestrator.datasets.fetching.by_torchvision import fetch_by_torchvision
from orchestrator.datasets.state import Fetched, StagingArea

FETCHERS: dict[str, Callable[[DatasetEntry, StagingArea], Fetched]] = {
    "archive": fetch_archive,
    "torchvision": fetch_by_torchvision,
    "huggingface": fetch_from_hub,
}

SIZES: dict[str, Callable[[DatasetEntry], int | None]] = {"archive": archive_size, "huggingface": hub_size}
"""Functions that ask a server for the size of a download, for entries whose catalog does not say."""

SPACE_PER_BYTE = {"archive": 2.0, "torchvision": 2.0, "huggingface": 1.0}
"""Disk space per fetched byte: an archive is kept beside its unpacked files until they are complete."""
