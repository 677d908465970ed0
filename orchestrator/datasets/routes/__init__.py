"""Readers of datasets, one for each kind of route. A new kind is one function here and one entry in ``READERS``.

A reader gets the catalog entry and the folder of its files. It decodes nothing and returns class names and parts.
Everything after it (words, splits, decoding, features, supports) is the same for every dataset.
"""

from collections.abc import Callable
from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import RouteContents
from orchestrator.datasets.routes.archive import read_archive
from orchestrator.datasets.routes.drawn import read_sklearn, read_toy
from orchestrator.datasets.routes.folder import read_folder
from orchestrator.datasets.routes.manifest import read_manifest
from orchestrator.datasets.routes.parquet import read_huggingface
from orchestrator.datasets.routes.torchvision_sets import read_torchvision

Reader = Callable[[DatasetEntry, Path], RouteContents]

READERS: dict[str, Reader] = {
    "toy": read_toy,
    "sklearn": read_sklearn,
    "folder": read_folder,
    "manifest": read_manifest,
    "torchvision": read_torchvision,
    "huggingface": read_huggingface,
    "archive": read_archive,
    "manual": read_archive,
}
