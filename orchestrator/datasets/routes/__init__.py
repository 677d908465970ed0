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
from orchestrator.datasets.part import Contents
from orchestrator.datasets.routes import class_folders, dassl, manifest, parquet, single_sets, torchvision_sets

READERS: dict[str, Callable[[DatasetEntry, Path], Contents]] = {
    "toy": single_sets.read_toy,
    "sklearn": single_sets.read_sklearn,
    "folder": class_folders.read_folder,
    "manifest": manifest.read_manifest,
    "torchvision": torchvision_sets.read_torchvision,
    "parquet": parquet.read_parquet,
    "class_folders": class_folders.read_class_folders,
    "wnid_folders": class_folders.read_wnid_folders,
    "numbered_folders": class_folders.read_numbered_folders,
    "cub": single_sets.read_cub,
    "zhou_split": dassl.read_zhou_split,
    "aircraft_lists": dassl.read_aircraft_lists,
    "imagenet_folders": dassl.read_imagenet_folders,
}
"""Layout of the files -> its reader. A route that has only one layout is listed by its kind."""
