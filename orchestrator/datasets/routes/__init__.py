"""Readers of datasets, one for each kind of route or layout of files. A new kind is one function and one entry here.

A reader gets the catalog entry and the folder of its files. It decodes nothing and returns class names and parts.
Everything after it (words, splits, decoding, features, supports) is the same for every dataset.
"""

from collections.abc import Callable
from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import RouteContents
from orchestrator.datasets.routes.class_folders import (
    read_class_folders,
    read_folder,
    read_numbered_folders,
    read_wnid_folders,
)
from orchestrator.datasets.routes.dassl import read_aircraft_lists, read_imagenet_folders, read_zhou_split
from orchestrator.datasets.routes.manifest import read_manifest
from orchestrator.datasets.routes.parquet import read_parquet
from orchestrator.datasets.routes.single_sets import read_cub, read_sklearn, read_toy
from orchestrator.datasets.routes.torchvision_sets import read_torchvision

READERS: dict[str, Callable[[DatasetEntry, Path], RouteContents]] = {
    "toy": read_toy,
    "sklearn": read_sklearn,
    "folder": read_folder,
    "manifest": read_manifest,
    "torchvision": read_torchvision,
    "parquet": read_parquet,
    "class_folders": read_class_folders,
    "wnid_folders": read_wnid_folders,
    "numbered_folders": read_numbered_folders,
    "cub": read_cub,
    "zhou_split": read_zhou_split,
    "aircraft_lists": read_aircraft_lists,
    "imagenet_folders": read_imagenet_folders,
}
"""Layout of the files, or kind of a route that has one layout -> reader."""
