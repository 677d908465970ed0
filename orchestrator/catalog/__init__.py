"""The catalog: datasets, domains and backbones as data, read from ``grids/`` and checked before anything runs.

Nothing in here imports torch or open_clip, so that a plan or an error message costs no seconds.
"""

from orchestrator.catalog.availability import fetch_instructions, image_origin, missing_data, missing_weights
from orchestrator.catalog.backbone_entry import BackboneEntry
from orchestrator.catalog.checkpoint_entry import CheckpointEntry, checkpoint_digest, missing_checkpoint
from orchestrator.catalog.data_paths import (
    BUNDLED_ROUTES,
    DATA_VARIABLE,
    dataset_folder,
    excluded_file,
    excluded_images,
    find_data_root,
    partial_folder,
)
from orchestrator.catalog.dataset_entry import DatasetEntry, DomainEntry
from orchestrator.catalog.load import Catalog, load_catalog
from orchestrator.catalog.location import grids_folder
from orchestrator.catalog.references import LOADER_VERSION, backbone_ref, class_names_of, dataset_ref, prompt_templates

__all__ = [
    "BUNDLED_ROUTES",
    "DATA_VARIABLE",
    "LOADER_VERSION",
    "BackboneEntry",
    "Catalog",
    "CheckpointEntry",
    "DatasetEntry",
    "DomainEntry",
    "backbone_ref",
    "checkpoint_digest",
    "class_names_of",
    "dataset_folder",
    "dataset_ref",
    "excluded_file",
    "excluded_images",
    "fetch_instructions",
    "find_data_root",
    "grids_folder",
    "image_origin",
    "load_catalog",
    "missing_checkpoint",
    "missing_data",
    "missing_weights",
    "partial_folder",
    "prompt_templates",
]
