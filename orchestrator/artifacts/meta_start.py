"""Kind ``MetaStart``: an image tower meta-learned on the training images of several datasets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.input_size import InputSize
from bolt.clip.tensor_files import save_tensors
from bolt.training.episode import MetaRecipe
from bolt.training.meta import REPORT_INTERVAL, MetaTask, meta_learn
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import FLOAT_BYTES, TOWER_FILE, TRAINING_FACTOR, ArtifactCache, ArtifactSpec
from orchestrator.artifacts.views import KEPT_BYTES, Views, place_images
from orchestrator.catalog import Catalog
from orchestrator.core.cell import BackboneRef, DatasetRef
from orchestrator.store import Artifact, Builder

META_SEED = 0
"""Seed of the episodes and crops of meta-learning."""


@dataclass(frozen=True)
class MetaStart(ArtifactSpec):
    """An image tower meta-learned on the training splits of some datasets."""

    kind = "sources"
    title = "meta-learned starts"
    shrink_hint = "fewer backbones or datasets of the meta track"
    gpu_share = 1.0

    backbone: BackboneRef
    datasets: tuple[DatasetRef, ...]
    image_size: InputSize
    recipe: MetaRecipe

    @property
    def name_parts(self) -> tuple[str | int, ...]:
        return self.backbone.name, "meta", self.recipe.variant, len(self.datasets)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        return tuple(spec for dataset in self.datasets for spec in (self._images(dataset), self._head(dataset)))

    def _images(self, dataset: DatasetRef) -> Images:
        return Images(dataset, "train", self.image_size)

    def _head(self, dataset: DatasetRef) -> Head:
        return Head(self.backbone, dataset, self.image_size)

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * catalog.backbone(self.backbone.name).parameters

    def gflops(self, catalog: Catalog) -> float:
        passes = 2 if self.recipe.variant == "maml" else 1
        of_episode = self.recipe.support * self.recipe.inner_steps + self.recipe.query
        images = TRAINING_FACTOR * passes * self.recipe.steps * self.recipe.tasks_per_step * of_episode
        return images * catalog.backbone(self.backbone.name).gflops_per_image

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Meta-learn the tower into ``tower.safetensors``.

        A build that was killed continues from its last snapshot and ends with the same bits.
        """
        snapshot = builder.snapshots.load()
        curve: list[float] = snapshot["meta_loss"] if snapshot else []

        def on_interval_end(interval: int, state: Callable[[], dict[str, Any]]) -> None:
            builder.progress(min((interval + 1) * REPORT_INTERVAL, self.recipe.steps), self.recipe.steps)
            builder.snapshots.save_if_due(
                lambda: {"training": state(), "meta_loss": curve}, cache.settings.snapshot_seconds
            )

        tensors = meta_learn(
            cache.backbone(self.backbone),
            [self._task(dataset, cache) for dataset in self.datasets],
            self.recipe,
            seed=META_SEED,
            report=lambda interval, metrics: curve.append(metrics["meta_loss"]),
            on_interval_end=on_interval_end,
            resume=snapshot["training"] if snapshot else None,
        )
        save_tensors(tensors, builder.folder / TOWER_FILE)
        names = [dataset.name for dataset in self.datasets]
        builder.meta.update(backbone=self.backbone.name, datasets=names, meta_loss=curve)

    def _task(self, dataset: DatasetRef, cache: ArtifactCache) -> MetaTask:
        """Return the training images of one dataset, augmented by light crops, as a task of meta-learning."""
        images, views = cache.get(self._images(dataset)), Views(light=True)
        placed = place_images(self._images(dataset), images, cache, KEPT_BYTES // len(self.datasets))

        def pixels(view: int, rows: Tensor) -> Tensor:
            side = self.image_size.side
            return views.draw(placed, rows.tolist(), view, size=side, dataset=dataset.name, seed=META_SEED)

        return MetaTask(dataset.name, cache.get(self._head(dataset)), torch.from_numpy(images.labels), pixels)

    def load(self, artifact: Artifact, device: str) -> dict[str, Tensor]:
        """Return the tower's tensors by open_clip's visual names, on the device."""
        tensors = load_file(artifact.path(TOWER_FILE))
        return {name: tensor.to(device) for name, tensor in tensors.items()}
