"""The catalog: datasets, domains and backbones as data, read from ``grids/`` and checked before anything runs.

Nothing in here imports torch or open_clip, so that a plan or an error message costs no seconds.
"""

from orchestrator.catalog.availability import how_to_get, missing_data, missing_weights, origin_of
from orchestrator.catalog.backbones import BackboneEntry
from orchestrator.catalog.checkpoints import CheckpointEntry, checkpoint_digest, missing_checkpoint
from orchestrator.catalog.entries import DatasetEntry, DomainEntry
from orchestrator.catalog.load import Catalog, load_catalog
from orchestrator.catalog.places import (
    DATA_VARIABLE,
    DRAWN,
    data_root_of,
    dataset_folder,
    excluded_file,
    excluded_images,
    partial_folder,
)
from orchestrator.catalog.reading import grids_folder
from orchestrator.catalog.references import LOADER_VERSION, backbone_ref, class_words, dataset_ref, templates

__all__ = [
    "DATA_VARIABLE",
    "DRAWN",
    "LOADER_VERSION",
    "BackboneEntry",
    "Catalog",
    "CheckpointEntry",
    "DatasetEntry",
    "DomainEntry",
    "backbone_ref",
    "checkpoint_digest",
    "class_words",
    "data_root_of",
    "dataset_folder",
    "dataset_ref",
    "excluded_file",
    "excluded_images",
    "grids_folder",
    "how_to_get",
    "load_catalog",
    "missing_checkpoint",
    "missing_data",
    "missing_weights",
    "origin_of",
    "partial_folder",
    "templates",
]
