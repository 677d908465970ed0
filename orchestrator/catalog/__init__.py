"""The catalog: datasets, domains, backbones and checkpoints as data, read from ``grids/`` before anything runs.

Start with ``load.py``, which reads the files, and with ``dataset_entry.py``, which has the fields of a dataset and says
what is missing of it on this machine. ``references.py`` gives entries their identities. The catalog is read without
importing torch or open_clip, whose import would delay a plan or an error message by seconds.
"""

from orchestrator.catalog.backbone_entry import BackboneEntry, CheckpointEntry, missing_checkpoint, missing_weights
from orchestrator.catalog.dataset_entry import (
    DatasetEntry,
    class_names_of,
    dataset_folder,
    excluded_file,
    excluded_images,
    missing_data,
    partial_folder,
    prompt_templates,
)
from orchestrator.catalog.load import Catalog, load_catalog
from orchestrator.catalog.references import backbone_ref, checkpoint_digest, dataset_ref, own_splits

__all__ = [
    "BackboneEntry", "Catalog", "CheckpointEntry", "DatasetEntry", "backbone_ref", "checkpoint_digest",
    "class_names_of", "dataset_folder", "dataset_ref", "excluded_file", "excluded_images", "load_catalog",
    "missing_checkpoint", "missing_data", "missing_weights", "own_splits", "partial_folder", "prompt_templates",
]  # fmt: skip
