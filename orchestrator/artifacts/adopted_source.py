"""Kind ``AdoptedSource``: an image tower from a checkpoint that another project fine-tuned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bolt.clip.tensor_files import save_tensors
from orchestrator.artifacts.examine_checkpoint import check_digest, examine_checkpoint
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.source_model import TOWER_FILE, SourceModel, source_address
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef, SourceRef
from orchestrator.core.recipes import adopted_source
from orchestrator.store import Artifact, Builder


@dataclass(frozen=True)
class AdoptedSource(ArtifactSpec):
    """An image tower converted from an adopted checkpoint: the same file as of a :class:`SourceModel`.

    Attributes:
        dataset: the name of the dataset it was fine-tuned on. No image of it is read.
        sha256: of the checkpoint, see :func:`orchestrator.catalog.checkpoint_entry.checkpoint_digest`.
    """

    kind = "sources"
    title = "adopted checkpoints"
    shrink_hint = "fewer backbones or sources"
    gpu_share = 0.5

    backbone: BackboneRef
    dataset: str
    sha256: str

    @property
    def ref(self) -> SourceRef:
        """The name that cells have for it."""
        return adopted_source(self.backbone, self.dataset, self.sha256)

    @property
    def address(self) -> str:
        return source_address(self.backbone.name, self.ref)

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * catalog.backbone(self.backbone.name).parameters

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Convert the checkpoint into ``tower.safetensors``.

        Raises ``UserError`` when its content is not what was adopted, or when it does not fit the backbone.
        """
        entry = loaded.catalog.checkpoints[self.backbone.name, self.dataset]
        check_digest(entry)
        tower = loaded.backbone(self.backbone).tower
        examined = examine_checkpoint(entry.path, tower.state_dict_open_clip(), tower.shape)
        save_tensors(examined.converted.tensors, builder.folder / TOWER_FILE)
        builder.meta.update(
            dataset=self.dataset,
            backbone=self.backbone.name,
            layout=examined.converted.layout,
            distance=examined.distance,
            notes=list(examined.notes),
        )

    def load(self, artifact: Artifact, device: str) -> Path:
        """The file of the tower's tensors by open_clip's visual names."""
        return artifact.path(TOWER_FILE)


Source = SourceModel | AdoptedSource
"""An image tower fine-tuned on one dataset, here or elsewhere."""
