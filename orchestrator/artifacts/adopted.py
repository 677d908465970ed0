"""Stage ``sources``: a checkpoint of others as a source, converted and looked at before it counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bolt.clip.checkpoint_conversion import ConvertedTower, convert_image_tower
from bolt.clip.checkpoint_files import UnreadableCheckpoint, config_file
from bolt.clip.checkpoint_reading import read_tensors
from bolt.clip.huggingface import shape_from_config
from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower_shape import TowerShape
from orchestrator.artifacts.kinds import AdoptedSource
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.catalog import CheckpointEntry, checkpoint_digest
from orchestrator.store import Builder
from orchestrator.util.errors import UserError

FAR = 0.5
"""Fine-tuning moves a tower by a few per cent of its norm; two towers trained apart are about 1.4 norms apart."""


@dataclass(frozen=True)
class Examined:
    """A checkpoint that can be a source.

    Attributes:
        converted: its image tower, and what is to be said of it.
        distance: norm of its task vector relative to the pre-trained tower's.
        notes: the conversion's, and a warning where the distance is that of another pre-training.
    """

    converted: ConvertedTower
    distance: float
    notes: tuple[str, ...]


def build_adopted(spec: AdoptedSource, loaded: LoadedArtifacts, builder: Builder) -> None:
    """Convert an adopted checkpoint into ``tower.safetensors``.

    Raises ``UserError`` when its content is not what was adopted, or it does not fit the backbone.
    """
    entry = loaded.catalog.checkpoints[spec.backbone.name, spec.dataset]
    check_content(entry)
    backbone = loaded.backbone(spec.backbone)
    examined = examine(entry.path, backbone.tower.state_dict_open_clip(), backbone.tower.shape)
    save_tensors(examined.converted.tensors, builder.folder / "tower.safetensors")
    builder.meta.update(
        dataset=spec.dataset,
        backbone=spec.backbone.name,
        layout=examined.converted.layout,
        distance=examined.distance,
        notes=list(examined.notes),
    )


def check_content(entry: CheckpointEntry) -> None:
    """Raise ``UserError`` when an adopted file is not there or is no longer the one that was adopted."""
    try:
        found = checkpoint_digest(entry.path)
    except UnreadableCheckpoint as error:
        raise UserError(str(error), where=_where(entry)) from None
    if found != entry.sha256:
        raise UserError(
            f"{entry.file} is not the file that was adopted: its sha256 is {found}, the catalog says {entry.sha256}",
            where=_where(entry),
            hint="put the right file back, or adopt this one: python -m orchestrator sources adopt",
        )


def examine(path: Path, frozen: Mapping[str, Tensor], shape: TowerShape) -> Examined:
    """Read and convert a checkpoint, and check that it is a fine-tuned tower of this backbone.

    Args:
        path: as for :func:`bolt.clip.checkpoint_reading.read_tensors`.
        frozen: the pre-trained tower's tensors by open_clip's visual names.
        shape: the pre-trained tower's, against which a Hugging Face configuration is held.

    Raises:
        UserError: for what cannot be read, does not fit, is the pre-trained tower itself, or states another
            activation or number of heads.
    """
    try:
        converted = convert_image_tower(read_tensors(path), frozen)
    except (UnreadableCheckpoint, TensorMismatch) as error:
        raise UserError(str(error), where="" if str(path) in str(error) else str(path)) from None
    if converted.layout.startswith("Hugging Face"):
        _check_config(path, shape)
    distance = _distance(converted.tensors, frozen)
    if distance == 0:
        raise UserError("this is the pre-trained tower itself, not a fine-tuned one", where=str(path))
    far = f"{distance:.2f} norms from the pre-trained tower: was it fine-tuned from other weights?"
    return Examined(converted, distance, (*converted.notes, *([far] if distance > FAR else [])))


def _check_config(path: Path, shape: TowerShape) -> None:
    """Hold what tensors cannot say (activation, heads, epsilon) against the ``config.json`` beside them."""
    found = config_file(path)
    if found is None:
        return
    try:
        stated = shape_from_config(json.loads(found.read_text(encoding="utf-8")))
    except (ValueError, OSError) as error:
        raise UserError(f"cannot be used: {error}", where=str(found)) from None
    for name in ("activation", "heads", "epsilon"):
        theirs, ours = getattr(stated, name), getattr(shape, name)
        if not (math.isclose(theirs, ours) if name == "epsilon" else theirs == ours):
            raise UserError(
                f"the checkpoint was made with {name} {theirs}, the backbone has {ours}",
                where=str(found),
                hint="the same weights give other features under it: adopt it for the backbone it was fine-tuned from",
            )


def _distance(tensors: Mapping[str, Tensor], frozen: Mapping[str, Tensor]) -> float:
    """Norm of the difference of two towers relative to the second one's."""
    moved = sum((tensors[name] - tensor.cpu()).double().square().sum().item() for name, tensor in frozen.items())
    whole = sum(tensor.double().square().sum().item() for tensor in frozen.values())
    return math.sqrt(moved / whole)


def _where(entry: CheckpointEntry) -> str:
    return f"checkpoints.{entry.backbone}.{entry.dataset}"
