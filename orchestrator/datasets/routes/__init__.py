"""Readers of datasets, one for each kind of route or layout of files.

A reader gets the catalog entry and the folder of the dataset's files. It decodes no image. It returns the data's class
names in label order and the parts by name: ``train`` and ``test``, with ``val`` if the data has a validation part, or
one part ``all`` that the entry's split recipe divides. All later steps (words for the classes, splits, decoding,
features, supports) are the same for every dataset.

A new layout is one function that returns ``(class names, parts)``, its entry in ``READERS``, and its name in the field
``layout`` of a route (``orchestrator/catalog/routes.py``).
"""

from collections.abc import Callable
from pathlib import Path

from orchestrator.catalog import DatasetEntry
from orchestrator.datasets.part import Part
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

READERS: dict[str, Callable[[DatasetEntry, Path], tuple[list[str], dict[str, Part]]]] = {
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
"""The layout of the files, or the kind of a route that has only one layout -> the reader."""
