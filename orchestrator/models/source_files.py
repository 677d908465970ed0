"""``sources export``: copy the source models of a store into a folder, as files that other programs read."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from orchestrator.artifacts.source_model import source_address
from orchestrator.artifacts.spec import TOWER_FILE
from orchestrator.models.find_result import find_result
from orchestrator.models.source_table import source_artifacts
from orchestrator.store import Artifact, Store
from orchestrator.util.atomic_files import replacing, writing
from orchestrator.util.errors import UserError, unknown_name


def export_sources(store: Store, folder: Path, *, backbone: str | None = None, cell: str | None = None) -> list[Path]:
    """Copy source models into a folder, one file for each: the image tower by open_clip's visual names.

    A file is called after its dataset; if a store has two models of one dataset, with the first digits of its digest.

    Args:
        backbone: only the models fine-tuned from this backbone; needed if the store has models of several.
        cell: only the source models of this cell: its id, or a unique prefix of one.

    Returns the files. Raises ``UserError`` for an unknown cell or backbone, if the store has no such model, if a file
    exists already, and if one cannot be written.
    """
    found = _of_cell(store, cell) if cell is not None else _of_backbone(store, backbone)
    datasets = Counter(artifact.meta["dataset"] for artifact in found)
    targets = []
    for artifact in found:
        name, digest = artifact.meta["dataset"], artifact.files[TOWER_FILE][2]
        targets.append(folder / f"{name if datasets[name] == 1 else f'{name}--{digest[:8]}'}.safetensors")
    if there := [path for path in targets if path.exists()]:
        raise UserError(f"{there[0]} is there already", where="FOLDER", hint="name another folder, or remove the file")
    with writing("the source models", str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for artifact, target in zip(found, targets, strict=True):
            with replacing(target) as temporary:
                shutil.copyfile(artifact.path(TOWER_FILE), temporary)
    return targets


def _of_cell(store: Store, wanted: str) -> list[Artifact]:
    """Return the source models of one cell."""
    cell = find_result(store, wanted).cell
    if not cell.sources:
        raise UserError(f"{cell.id} uses no source models", where="--cell", hint="give a cell of a method such as bolt")
    found = []
    for source in cell.sources:
        artifact = store.artifact(source_address(cell.backbone.name, source))
        if artifact is None:
            raise UserError(
                f"the source model of {source.dataset} is not in the store",
                where=store.url,
                hint="run its grid on an empty --store, which builds it again, and use that store",
            )
        found.append(artifact)
    return found


def _of_backbone(store: Store, backbone: str | None) -> list[Artifact]:
    """All source models of a store that were fine-tuned from one backbone."""
    found: dict[str, list[Artifact]] = {}
    for artifact in source_artifacts(store, "SourceModel", "AdoptedSource"):
        found.setdefault(artifact.identity["backbone"]["name"], []).append(artifact)
    if not found:
        raise UserError("the store has no source models", where=store.url, hint="a grid with sources builds them")
    if backbone is None and len(found) > 1:
        raise UserError(
            f"the store has source models of several backbones: {', '.join(found)}", hint="select one: --backbone B"
        )
    if backbone is not None and backbone not in found:
        raise unknown_name("backbone with source models", backbone, found, where="--backbone")
    return found[backbone or next(iter(found))]
