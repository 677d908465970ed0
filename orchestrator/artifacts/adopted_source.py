"""Kind ``AdoptedSource``: an image tower from a checkpoint that another project fine-tuned, checked and converted."""

from dataclasses import dataclass
from pathlib import Path

from bolt.clip.checkpoint_files import UnreadableCheckpoint
from bolt.clip.fine_tuned import ExaminedCheckpoint, examine_checkpoint
from bolt.clip.tensor_files import save_tensors
from bolt.clip.tensor_names import TensorMismatch
from bolt.clip.tower import ImageTower
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
        examined = examined_checkpoint(entry.file, cache.backbone(self.backbone).tower)
        save_tensors(examined.tensors, builder.folder / TOWER_FILE)
        about = {"layout": examined.layout, "distance": examined.distance, "notes": list(examined.notes)}
        builder.meta.update(dataset=self.dataset, backbone=self.backbone.name, **about)


def check_digest(entry: CheckpointEntry) -> None:
    """Raise ``UserError`` if an adopted file is missing or has changed since it was adopted."""
    where = f"checkpoints.{entry.backbone}.{entry.dataset}"
    with explained(UnreadableCheckpoint, where=where):
        found = checkpoint_digest(entry.file)
    if found != entry.sha256:
        what = f"{entry.file} is not the file that was adopted: its sha256 is {found}, the catalog says {entry.sha256}"
        hint = "put the right file back, or adopt this one: python -m orchestrator sources adopt"
        raise UserError(what, where=where, hint=hint)


def examined_checkpoint(path: Path, tower: ImageTower) -> ExaminedCheckpoint:
    """Return what :func:`bolt.clip.fine_tuned.examine_checkpoint` returns; its errors are raised as ``UserError``."""
    with explained(UnreadableCheckpoint, TensorMismatch):
        return examine_checkpoint(path, tower.state_dict_open_clip(), tower.shape)
