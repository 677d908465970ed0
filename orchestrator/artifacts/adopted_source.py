"""Kind ``AdoptedSource``: an image tower from a checkpoint that another project fine-tuned, checked and converted."""

import math
from dataclasses import dataclass
from pathlib import Path

from bolt.clip.checkpoint_conversion import FAR, ConvertedTower, convert_image_tower, distance_moved
from bolt.clip.checkpoint_files import UnreadableCheckpoint, config_file
from bolt.clip.checkpoint_reading import read_checkpoint
from bolt.clip.huggingface import shape_from_config
from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import ImageTower
from bolt.clip.tower_shape import TowerShape
from bolt.util.json_text import read_json
from orchestrator.artifacts.source_model import Source
from orchestrator.artifacts.spec import TOWER_FILE, ArtifactCache
from orchestrator.catalog import Catalog, CheckpointEntry, checkpoint_digest, missing_checkpoint
from orchestrator.core.cell import SourceRef
from orchestrator.core.recipes import adopted_source
from orchestrator.store import Builder
from orchestrator.util.errors import UserError, explained


@dataclass(frozen=True)
class AdoptedSource(Source):
    """An image tower converted from a checkpoint that another project fine-tuned. It is stored like a ``SourceModel``.

    Attributes:
        dataset: the name of the dataset that the checkpoint was fine-tuned on. The images of the dataset are not read.
        sha256: the digest of the checkpoint, see :func:`orchestrator.catalog.references.checkpoint_digest`.
    """

    title = "adopted checkpoints"
    gpu_share = 0.5

    dataset: str
    sha256: str

    @property
    def ref(self) -> SourceRef:
        return adopted_source(self.backbone, self.dataset, self.sha256)

    def missing_input(self, catalog: Catalog, data_root: Path | None) -> UserError | None:
        return missing_checkpoint(catalog.checkpoints[self.backbone.name, self.dataset])

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Convert the checkpoint into ``tower.safetensors``.

        Raises ``UserError`` if the checkpoint has changed since it was adopted, or if it does not fit the backbone.
        """
        entry = cache.catalog.checkpoints[self.backbone.name, self.dataset]
        check_digest(entry)
        examined = examine_checkpoint(entry.path, cache.backbone(self.backbone).tower)
        save_tensors(examined.tensors, builder.folder / TOWER_FILE)
        builder.meta.update(
            dataset=self.dataset,
            backbone=self.backbone.name,
            layout=examined.layout,
            distance=examined.distance,
            notes=list(examined.notes),
        )


@dataclass(frozen=True)
class ExaminedCheckpoint(ConvertedTower):
    """A checkpoint that can be a source. ``notes`` also has a warning if the distance exceeds :data:`FAR`.

    Attributes:
        distance: norm of the checkpoint's task vector, relative to the norm of the pre-trained tower.
    """

    distance: float

    @property
    def summary(self) -> str:
        """The layout and the distance in one line."""
        return f"{self.layout}; distance from the pre-trained tower: {100 * self.distance:.2f} % of its norm"


def check_digest(entry: CheckpointEntry) -> None:
    """Raise ``UserError`` if an adopted file is missing or has changed since it was adopted."""
    where = f"checkpoints.{entry.backbone}.{entry.dataset}"
    with explained(UnreadableCheckpoint, where=where):
        found = checkpoint_digest(entry.path)
    if found != entry.sha256:
        what = f"{entry.file} is not the file that was adopted: its sha256 is {found}, the catalog says {entry.sha256}"
        hint = "put the right file back, or adopt this one: python -m orchestrator sources adopt"
        raise UserError(what, where=where, hint=hint)


def examine_checkpoint(path: Path, tower: ImageTower) -> ExaminedCheckpoint:
    """Read and convert a checkpoint, and check that it was fine-tuned from the pre-trained ``tower``.

    Args:
        path: a file of the checkpoint or its folder, see :func:`bolt.clip.checkpoint_reading.read_checkpoint`.
        tower: the pre-trained tower. The configuration of a Hugging Face checkpoint must agree with its shape.

    Raises:
        UserError: if the checkpoint cannot be read, does not fit the backbone or equals the pre-trained tower, or if
            its activation, number of heads or epsilon differs from the backbone's.
    """
    frozen = tower.state_dict_open_clip()
    try:
        converted = convert_image_tower(read_checkpoint(path), frozen)
        distance = distance_moved(converted, frozen)
    except (UnreadableCheckpoint, TensorMismatch) as error:
        raise UserError(str(error), where="" if str(path) in str(error) else str(path)) from None
    if converted.layout.startswith("Hugging Face"):
        _check_config(path, tower.shape)
    notes = list(converted.notes)
    if distance > FAR:
        notes.append(f"{distance:.2f} norms from the pre-trained tower: was it fine-tuned from other weights?")
    return ExaminedCheckpoint(converted.tensors, converted.layout, tuple(notes), distance)


def _check_config(path: Path, shape: TowerShape) -> None:
    """Raise ``UserError`` if ``config.json`` beside the tensors states another activation, head count or epsilon."""
    if (found := config_file(path)) is None:
        return
    try:
        stated = shape_from_config(read_json(found))
    except (ValueError, OSError) as error:
        raise UserError(f"cannot be used: {error}", where=str(found)) from None
    for name in ("activation", "heads", "epsilon"):
        theirs, ours = getattr(stated, name), getattr(shape, name)
        if not (math.isclose(theirs, ours) if name == "epsilon" else theirs == ours):
            what = f"the checkpoint was made with {name} {theirs}, the backbone has {ours}"
            hint = "adopt it for the backbone that it was fine-tuned from; with another one, its features are wrong"
            raise UserError(what, where=str(found), hint=hint)
