"""Kind ``TestFeatures``: the frozen tower's features of a test split.

Shape legend: N test images, D embedding width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.tensor_files import save_tensors
from bolt.clip.transfer import ReadAhead
from bolt.task.scoring import SCORING_BATCH, scoring_batches
from orchestrator.artifacts.host_work import HostWork, launches, test_images_read
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactSpec
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.store import Artifact, Builder


@dataclass(frozen=True)
class TestFeatures(ArtifactSpec):
    """The frozen tower's features of the test split, (N, D) float32, not normalised."""

    kind = "features"
    title = "test features"
    shrink_hint = "fewer backbones or datasets"
    gpu_share = 0.5
    kept = 8

    backbone: BackboneRef
    dataset: DatasetRef
    image_size: int

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.backbone.name, self.dataset.name, "test"

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return (Images(self.dataset, "test", self.image_size),)

    def size_bytes(self, catalog: Catalog) -> int:
        images = catalog.dataset(self.dataset.name).sizes.test
        return FLOAT_BYTES * images * catalog.backbone(self.backbone.name).embed_dim

    def gflops(self, catalog: Catalog) -> float:
        images = catalog.dataset(self.dataset.name).sizes.test
        return images * catalog.backbone(self.backbone.name).gflops_per_image

    def host_work(self, catalog: Catalog) -> HostWork:
        images = catalog.dataset(self.dataset.name).sizes.test
        layers = catalog.backbone(self.backbone.name).layers
        return test_images_read(images) + launches(layers, 0, images / SCORING_BATCH)

    def build(self, loaded: LoadedArtifacts, builder: Builder) -> None:
        """Encode the test images."""
        images = loaded.get(Images(self.dataset, "test", self.image_size))
        backbone = loaded.backbone(self.backbone)
        batches = scoring_batches(len(images))
        with ReadAhead(lambda batch: images.batch(*batch), batches, loaded.device) as pixels:
            features_ND = torch.cat([backbone.encode_images(pixels(batch)).cpu() for batch in batches])
        save_tensors({"features": features_ND}, builder.folder / "features.safetensors")
        builder.meta.update(images=len(images))

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """The features (N, D) on the CPU; a split can be too large for the device."""
        return load_file(artifact.path("features.safetensors"))["features"]
