"""Kind ``FrozenTower``: the image tower of a backbone, converted once for all processes that read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.artifacts.stored_backbone import TOWER_FILE, TOWER_VERSION, frozen_tower_address
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef
from orchestrator.store import Builder


@dataclass(frozen=True)
class FrozenTower(ArtifactSpec):
    """The image tower of a backbone, with what else its images need.

    A process that reads it does without open_clip, whose import and model take 5 seconds for ViT-B/32 and whose modules
    take 240 MiB. One that finds none loads the weights with open_clip; the numbers are the same.
    """

    version = TOWER_VERSION
    kind = "backbones"
    title = "image towers"
    shrink_hint = "fewer backbones"

    backbone: BackboneRef

    def __post_init__(self) -> None:
        object.__setattr__(self, "backbone", replace(self.backbone, precision=None))  # one for all number formats

    @property
    def address(self) -> str:
        return frozen_tower_address(self.backbone)

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * catalog.backbone(self.backbone.name).parameters

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Write the tower into ``tower.safetensors``, and its shape and preprocessing into the manifest."""
        from bolt.clip.tensor_files import save_tensors

        backbone = loaded.backbone(self.backbone)
        save_tensors(backbone.tower.state_dict_open_clip(), builder.folder / TOWER_FILE)
        builder.meta.update(
            shape=asdict(backbone.tower.shape),
            logit_scale=backbone.logit_scale,
            mean=list(backbone.mean),
            std=list(backbone.std),
        )
