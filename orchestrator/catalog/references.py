"""From an entry to its identity, and to the texts a head is made of."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator.catalog.backbone_entry import BackboneEntry
from orchestrator.catalog.data_paths import dataset_folder, excluded_images
from orchestrator.catalog.dataset_entry import DatasetEntry
from orchestrator.catalog.fields import OPEN_CLIP
from orchestrator.catalog.location import display_path, grids_folder
from orchestrator.catalog.routes import FolderRoute, ManifestRoute
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.util.errors import UserError
from orchestrator.util.identity import fingerprint

LOADER_VERSION = 2
"""Raised whenever the code that reads datasets changes which images, labels or words come out."""


def dataset_ref(entry: DatasetEntry, data_root: Path | None) -> DatasetRef:
    """The dataset's identity: what it is made of, not what is said about it.

    A folder's files enter by relative path and size once the folder is there, so a plan made without the data names
    other cells than a run with it. So do the images that are left out on record, where there are any.

    Raises ``UserError`` for a toy dataset in an installation without the toy world.
    """
    content: dict[str, Any] = {
        "loader": LOADER_VERSION,
        "route": entry.route.model_dump(),
        "splits": entry.splits.model_dump(),
        "class_names": entry.class_names,
        "prompts": entry.prompts,
        "mirrorable": entry.mirrorable,
    }
    if entry.renamed:
        content["renamed"] = entry.renamed
    if entry.exif_rotation:
        content["exif_rotation"] = True
    if entry.route.kind == "toy":
        content["world"] = _world_version(entry)
    if isinstance(entry.route, FolderRoute | ManifestRoute):
        content["files"] = None if data_root is None else _listing(data_root / entry.route.folder)
    if isinstance(entry.route, ManifestRoute):  # other labels in a table of the same size are another dataset
        table = dataset_folder(entry, data_root) / entry.route.file
        content["table"] = _sha256(table) if table.is_file() else None
    if excluded := excluded_images(entry, data_root):
        content["excluded"] = sorted(excluded)
    return DatasetRef(entry.name, fingerprint(content))


def backbone_ref(entry: BackboneEntry) -> BackboneRef:
    """The backbone's identity: architecture, weights (a file by its content), activation and precision.

    Raises ``UserError`` when its model configuration cannot be read.
    """
    weights: Any = {"pretrained": entry.weights.pretrained}
    if entry.weights.file is not None:
        path = weights_path(entry)
        weights = {"sha256": _sha256(path) if path.is_file() else None}
    content = {
        "architecture": _architecture(entry),
        "weights": weights,
        "quick_gelu": entry.quick_gelu,
        "image_size": entry.image_size,
        "precision": entry.precision,
    }
    return BackboneRef(entry.name, fingerprint(content))


def architecture_path(entry: BackboneEntry) -> Path | None:
    """The model-config json of a backbone of one's own; ``None`` for a model open_clip knows by name."""
    return grids_folder() / entry.architecture if entry.architecture.endswith(".json") else None


def weights_path(entry: BackboneEntry) -> Path:
    """The weights file of a backbone that has one. Raises ``ValueError`` for a pre-trained tag."""
    if entry.weights.file is None:
        raise ValueError(f"{entry.name} has pre-trained weights of open_clip, not a file")
    return grids_folder() / entry.weights.file


def prompt_templates(entry: DatasetEntry) -> tuple[str, ...]:
    """The prompt templates, imported from open_clip where the entry names one of its lists."""
    return _from_open_clip(entry.prompts) if isinstance(entry.prompts, str) else entry.prompts


def class_names_of(entry: DatasetEntry) -> tuple[str, ...] | dict[str, str] | None:
    """The class names, imported from open_clip where the entry names one of its lists."""
    return _from_open_clip(entry.class_names) if isinstance(entry.class_names, str) else entry.class_names


@cache
def _from_open_clip(name: str) -> tuple[str, ...]:
    attribute = name.removeprefix(OPEN_CLIP)
    found = getattr(importlib.import_module("open_clip"), attribute, None)
    if found is None:
        raise UserError(f"open_clip has no list {attribute!r}", where=name)
    return tuple(item if isinstance(item, str) else item("{}") for item in found)


def _world_version(entry: DatasetEntry) -> Any:
    try:
        return importlib.import_module("orchestrator.drawn_world.tasks").WORLD_VERSION
    except ModuleNotFoundError as error:
        raise UserError(
            f"dataset {entry.name} is a drawn one, and this installation has no toy world ({error})",
            hint="reinstall the project",
        ) from None


def _listing(folder: Path) -> list[tuple[str, int]] | None:
    """Relative path and size of every file, sorted; ``None`` when there is no such folder."""
    if not folder.is_dir():
        return None
    found: list[tuple[str, int]] = []
    pending = [folder]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for item in entries:
                if item.name.startswith("."):
                    continue
                if item.is_dir():
                    pending.append(Path(item.path))
                else:
                    found.append((Path(item.path).relative_to(folder).as_posix(), item.stat().st_size))
    return sorted(found)


def _architecture(entry: BackboneEntry) -> Any:
    path = architecture_path(entry)
    if path is None:
        return entry.architecture
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"the architecture of {entry.name} cannot be read: {error}", where=display_path(path)) from None


def _sha256(path: Path) -> str:
    stat = path.stat()
    return _sha256_of(str(path), stat.st_size, stat.st_mtime_ns)


@cache
def _sha256_of(path: str, size: int, mtime_ns: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
