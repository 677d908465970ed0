"""Kinds of artifacts that hold features of the frozen tower: of test images and their views, of validation images, and
of supports.

A support is the labelled images that a method learns from.

Shape legend: V views of a test image, or augmented views of a support; N, n images; D embedding width.
"""

from dataclasses import dataclass, field, replace

import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.input_size import InputSize
from bolt.clip.tensor_files import save_tensors
from bolt.clip.transfer import ReadAhead
from bolt.task.scoring import scoring_batches
from bolt.task.task import EVALUATION_VIEW
from orchestrator.artifacts.images import Images, OfTestSplit
from orchestrator.artifacts.spec import FLOAT_BYTES, ArtifactCache, ArtifactSpec, FrozenTower
from orchestrator.artifacts.support_images import SupportImages, support_pool
from orchestrator.artifacts.views import Views, place_images
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef
from orchestrator.store import Artifact, Builder
from orchestrator.util.identity import ADDED_LATER

FILE = "features.safetensors"


@dataclass(frozen=True)
class TestFeatures(OfTestSplit):
    """The frozen tower's features of the test split, (N, D) float32, not normalised."""

    title = "test features"
    gpu_share = 0.5
    part = "test"

    def size_bytes(self, catalog: Catalog) -> int:
        images = catalog.dataset(self.dataset.name).sizes.test
        return FLOAT_BYTES * images * catalog.backbone(self.backbone.name).embed_dim

    def gflops(self, catalog: Catalog) -> float:
        return catalog.dataset(self.dataset.name).sizes.test * catalog.backbone(self.backbone.name).gflops_per_image

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Encode the test images."""
        images = cache.get(self.images)
        backbone = cache.backbone(self.backbone)
        batches, features = scoring_batches(len(images)), []
        with ReadAhead(lambda batch: images.batch(*batch), batches, cache.device) as pixels:
            for start, stop in batches:
                features.append(backbone.encode_images(pixels((start, stop))).cpu())
                builder.progress(stop, len(images))
        save_tensors({"features": torch.cat(features)}, builder.folder / FILE)
        builder.meta.update(images=len(images))

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """Return the features (N, D) on the CPU, because a split can be too large for the device."""
        return load_file(artifact.path(FILE))["features"]


@dataclass(frozen=True)
class ValidationFeatures(TestFeatures):
    """The frozen tower's features of a dataset's validation part, (N, D) float32, not normalised."""

    title = "validation features"
    part = "validation"

    @property
    def images(self) -> Images:
        """The decoded validation part."""
        return Images(self.dataset, "validation", self.image_size)


@dataclass(frozen=True)
class TestViewFeatures(OfTestSplit):
    """The frozen tower's features of several views of each test image, (n, V, D) float32; view 0 is un-augmented.

    Attributes:
        seed: the seed of the random crops.
        family: how much of an image a crop keeps, and whether crops are mirrored.
        views: the number of views, V, including view 0.
    """

    title = "features of views of test images"
    shrink_hint = "fewer seeds or datasets of the tta_image track, or fewer views"
    gpu_share = 0.5
    cache_size = 2
    part = "views"

    seed: int
    family: Views
    views: int

    @property
    def plain(self) -> TestFeatures:
        """The features of the un-augmented test images, which are view 0."""
        return TestFeatures(self.backbone, self.dataset, self.image_size)

    @property
    def whole(self) -> Images:
        """The test images from which the crops are taken. Large images are scaled down; others keep their size."""
        return Images(self.dataset, "test_whole", self.image_size)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return FrozenTower(self.backbone), self.whole, self.plain

    def size_bytes(self, catalog: Catalog) -> int:
        return self.views * self.plain.size_bytes(catalog)

    def gflops(self, catalog: Catalog) -> float:
        return (self.views - 1) * self.plain.gflops(catalog)

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Encode the crops, view by view within a batch of images."""
        backbone, images = cache.backbone(self.backbone), place_images(self.whole, cache.get(self.whole), cache)
        plain_ND, name = cache.get(self.plain), self.dataset.name
        features_nVD = torch.empty(len(plain_ND), self.views, plain_ND.shape[1])
        features_nVD[:, EVALUATION_VIEW] = plain_ND
        for start, stop in scoring_batches(len(plain_ND)):
            rows = range(start, stop)
            for view in range(1, self.views):
                pixels = self.family.draw(images, rows, view, size=self.image_size.side, dataset=name, seed=self.seed)
                features_nVD[start:stop, view] = backbone.encode_images(pixels).cpu()
            builder.progress(stop, len(plain_ND))
        save_tensors({"features": features_nVD}, builder.folder / FILE)
        builder.meta.update(images=len(plain_ND), views=self.views)

    def load(self, artifact: Artifact, device: str) -> Tensor:
        """Return the features (n, V, D) on the CPU."""
        return load_file(artifact.path(FILE))["features"]


@dataclass(frozen=True)
class SupportFeatures(ArtifactSpec):
    """The frozen tower's features of support images and their augmented views.

    Attributes:
        family: how much of an image an augmented view keeps, and whether augmented views are mirrored.
        views: the number of augmented views, V. The un-augmented view is encoded as well.
        shots: the number of images per class that are encoded; ``None`` for all images of ``support``. A cell that
            needs fewer images per class reads a part of the features.
    """

    version = 2
    kind = "features"
    title = "support features"
    shrink_hint = "fewer seeds or backbones, or fewer epochs of methods on frozen features"
    gpu_share = 0.5
    cache_size = 4

    backbone: BackboneRef
    support: SupportImages
    image_size: InputSize
    family: Views
    views: int
    shots: int | None = field(default=None, metadata=ADDED_LATER)

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        shots = () if self.shots is None else (f"k{self.shots}",)
        return self.backbone.name, self.support.dataset.name, "support", f"s{self.support.seed}", *shots

    @property
    def _encoded(self) -> SupportImages:
        """The support images whose features this artifact holds."""
        return self.support if self.shots is None else replace(self.support, shots=self.shots)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return FrozenTower(self.backbone), self.support

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * self._encoded_images(catalog) * catalog.backbone(self.backbone.name).embed_dim

    def gflops(self, catalog: Catalog) -> float:
        return self._encoded_images(catalog) * catalog.backbone(self.backbone.name).gflops_per_image

    def _encoded_images(self, catalog: Catalog) -> int:
        return self._encoded.image_count(catalog) * (self.views + 1)

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Write ``features_VND``, of view 0 and of each augmented view, and ``indices_N``, positions in the split."""
        pool = support_pool(self.support, cache)
        indices = pool.indices
        if self.shots is not None:
            indices = self._encoded.drawn(pool.labels_of_split, pool.labels_of_validation)
        backbone = cache.backbone(self.backbone)
        features = []
        for view in range(EVALUATION_VIEW, self.views + 1):
            features.append(backbone.encode_images(pool.pixels(view, indices, self.image_size, self.family)).cpu())
            builder.progress(view + 1, self.views + 1)
        tensors = {"features_VND": torch.stack(features), "indices_N": torch.from_numpy(indices)}
        save_tensors(tensors, builder.folder / FILE)
        builder.meta.update(images=len(indices), views=self.views)

    def load(self, artifact: Artifact, device: str) -> dict[str, Tensor]:
        """Return ``features_VND`` and ``indices_N``, on the CPU."""
        return load_file(artifact.path(FILE))
