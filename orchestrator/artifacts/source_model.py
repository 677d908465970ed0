"""Image towers that are trained here: ``SourceModel``, fine-tuned on one dataset, and ``MetaStart``, meta-learned.

Shape legend: B images of a batch, N test images, D embedding width, S image side.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from bolt.clip.input_size import InputSize
from bolt.clip.tensor_files import save_tensors
from bolt.clip.transfer import ReadAhead
from bolt.task.classifiers import CosineClassifier
from bolt.task.scoring import accuracy, predict_classes, scoring_batches
from bolt.task.support import batch_order
from bolt.training.finetune import finetune_source
from bolt.training.loop import TrainingRecipe
from bolt.training.meta import REPORT_INTERVAL, MetaRecipe, MetaTask, meta_learn
from orchestrator.artifacts.features import TestFeatures
from orchestrator.artifacts.head import Head
from orchestrator.artifacts.images import Images
from orchestrator.artifacts.spec import FLOAT_BYTES, TOWER_FILE, TRAINING_FACTOR, ArtifactCache, ArtifactSpec
from orchestrator.artifacts.views import KEPT_BYTES, Views, place_images
from orchestrator.catalog import BackboneEntry, Catalog
from orchestrator.core.cell import BackboneRef, DatasetRef, SourceRef
from orchestrator.core.gpu_memory import CONTEXT_MIB
from orchestrator.core.recipes import SourceRecipe
from orchestrator.store import Artifact, Builder, CorruptArtifact, Store
from orchestrator.util.identity import address

_KEPT_WIDTHS = 10
"""Numbers that a transformer block keeps of each token for the backward pass, in multiples of the tower's width.

The block keeps the inputs of its two layer norms (2 widths) and of its activation (4), the queries, keys and values
(3), and the output of attention (1)."""

_KEPT_WIDTHS_OF_TIMM = 16
"""``_KEPT_WIDTHS`` of timm's blocks. They also keep the outputs of both layer norms (2 widths) and of the activation
(4)."""

TRAINING_SEED = 0
"""Seed of the order, crops and episodes of a training. A tower is trained once, on whole training splits."""


def training_mib(entry: BackboneEntry, batch_size: int) -> float:
    """Return the estimated GPU memory, in MiB, to train every weight of an image tower.

    The estimate includes CUDA's context, the weights, their gradients, AdamW's moments and the activations that the
    backward pass needs. It does not include the images.
    """
    tokens = (entry.image_size // entry.patch) ** 2 + 1
    kept_widths = _KEPT_WIDTHS_OF_TIMM if entry.timm else _KEPT_WIDTHS
    activations = kept_widths * entry.width * tokens * entry.layers * batch_size
    return CONTEXT_MIB + FLOAT_BYTES * (4 * entry.parameters + activations) / 2**20


@dataclass(frozen=True)
class Source(ArtifactSpec):
    """An image tower fine-tuned on one dataset, here or elsewhere."""

    kind = "sources"
    shrink_hint = "fewer backbones or sources"

    backbone: BackboneRef

    @property
    @abstractmethod
    def ref(self) -> SourceRef:
        """The reference by which cells name the source."""

    @property
    def address(self) -> str:
        return source_address(self.backbone.name, self.ref)

    def size_bytes(self, catalog: Catalog) -> int:
        return FLOAT_BYTES * catalog.backbone(self.backbone.name).parameters

    def load(self, artifact: Artifact, device: str) -> Path:
        """Return the path of the safetensors file with the tower's tensors.

        The tensors have the names of open_clip's image tower. They are not loaded, because a reader often needs only
        some of them.
        """
        return artifact.path(TOWER_FILE)


@dataclass(frozen=True)
class SourceModel(Source):
    """An image tower that this project fine-tunes. ``digest`` identifies it, see :meth:`SourceRecipe.source`."""

    title = "source models"
    gpu_share = 1.0

    dataset: DatasetRef
    image_size: InputSize
    recipe: SourceRecipe
    digest: str

    @property
    def ref(self) -> SourceRef:
        return SourceRef(self.dataset.name, self.digest)

    @property
    def inputs(self) -> tuple[ArtifactSpec, ...]:
        images = Images(self.dataset, "train", self.image_size)
        return images, *accuracy_inputs(self.backbone, self.dataset, self.image_size)

    def gflops(self, catalog: Catalog) -> float:
        sizes = catalog.dataset(self.dataset.name).sizes
        images = TRAINING_FACTOR * sizes.train * (self.recipe.epochs or 1) + sizes.test
        return images * catalog.backbone(self.backbone.name).gflops_per_image

    def gpu_mib(self, catalog: Catalog) -> float:
        return training_mib(catalog.backbone(self.backbone.name), self.recipe.batch_size) + KEPT_BYTES / 2**20

    def build(self, cache: ArtifactCache, builder: Builder) -> None:
        """Fine-tune the image tower into ``tower.safetensors``; record its and the frozen tower's test accuracy.

        A build that was killed continues from its last snapshot and ends with the same bits.
        """
        name = self.dataset.name
        backbone = cache.pop_backbone(self.backbone)
        labels_N, pixels = training_images(self.dataset, self.image_size, cache)
        recipe = TrainingRecipe(**asdict(self.recipe))
        resume = builder.snapshots.load()
        curve = [row["train_loss"] for row in resume["curve"]] if resume else []

        def on_epoch_end(epoch: int, state: Callable[[], dict[str, Any]]) -> None:
            builder.progress(epoch + 1, recipe.epochs)
            builder.snapshots.save_if_due(state, cache.settings.snapshot_seconds)

        tensors = finetune_source(
            backbone,
            cache.get(Head(self.backbone, self.dataset, self.image_size)),
            labels_N,
            pixels,
            lambda epoch: batch_order(len(labels_N), dataset=name, seed=TRAINING_SEED, epoch=epoch),
            recipe,
            lambda epoch, metrics: curve.append(metrics["train_loss"]),
            on_epoch_end=on_epoch_end,
            resume=resume,
            in_place=True,
        )
        save_tensors(tensors, builder.folder / TOWER_FILE)
        builder.meta.update(dataset=name, backbone=self.backbone.name, train_images=len(labels_N), train_loss=curve)
        builder.meta.update(source_accuracy(tensors, self.backbone, self.dataset, cache))


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
        size = self.image_size
        pairs = ((Images(dataset, "train", size), Head(self.backbone, dataset, size)) for dataset in self.datasets)
        return tuple(chain.from_iterable(pairs))

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
            seconds = cache.settings.snapshot_seconds
            builder.snapshots.save_if_due(lambda: {"training": state(), "meta_loss": curve}, seconds)

        tensors = meta_learn(
            cache.backbone(self.backbone),
            [self._task(dataset, cache) for dataset in self.datasets],
            self.recipe,
            seed=TRAINING_SEED,
            report=lambda interval, metrics: curve.append(metrics["meta_loss"]),
            on_interval_end=on_interval_end,
            resume=snapshot["training"] if snapshot else None,
        )
        save_tensors(tensors, builder.folder / TOWER_FILE)
        names = [dataset.name for dataset in self.datasets]
        builder.meta.update(backbone=self.backbone.name, datasets=names, meta_loss=curve)

    def _task(self, dataset: DatasetRef, cache: ArtifactCache) -> MetaTask:
        labels_N, pixels = training_images(dataset, self.image_size, cache, KEPT_BYTES // len(self.datasets))
        return MetaTask(dataset.name, cache.get(Head(self.backbone, dataset, self.image_size)), labels_N, pixels)

    def load(self, artifact: Artifact, device: str) -> dict[str, Tensor]:
        """Return the tower's tensors on the device, by their names in open_clip's image tower."""
        return {name: tensor.to(device) for name, tensor in load_file(artifact.path(TOWER_FILE)).items()}


def training_images(
    dataset: DatasetRef, image_size: InputSize, cache: ArtifactCache, kept_bytes: int = KEPT_BYTES
) -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
    """Return the labels (N,) of a dataset's training images, and a function that makes augmented views of the images.

    ``pixels(view, rows)`` returns one view of the images at ``rows``, uint8 (B, 3, S, S). Its crops keep nearly the
    whole image. ``kept_bytes``: see :class:`~orchestrator.artifacts.views.DeviceImages`.
    """
    spec, views = Images(dataset, "train", image_size), Views(light=True)
    images = cache.get(spec)
    placed = place_images(spec, images, cache, kept_bytes)

    def pixels(view: int, rows: Tensor) -> Tensor:
        side, name = image_size.side, dataset.name
        return views.draw(placed, rows.tolist(), view, size=side, dataset=name, seed=TRAINING_SEED)

    return torch.from_numpy(images.labels), pixels


def source_address(backbone: str, source: SourceRef) -> str:
    """Return the address of a source in the store. The digest in ``source`` covers the backbone and the training."""
    return f"{SourceModel.kind}/{address(backbone, source.dataset, of=(SourceModel.version, source))}"


def source_gain(store: Store, backbone: str, source: SourceRef) -> float | None:
    """Return how many points of test accuracy fine-tuning gained on a source model's dataset.

    Return ``None`` if the source model is not built or its accuracy is not measured.
    """
    with suppress(CorruptArtifact):
        built = store.artifact(source_address(backbone, source))
        if built is not None and "accuracy_fine_tuned" in built.meta:
            return float(built.meta["accuracy_fine_tuned"] - built.meta["accuracy_zero_shot"])
    return None


def accuracy_inputs(backbone: BackboneRef, dataset: DatasetRef, image_size: InputSize) -> tuple[Head, TestFeatures]:
    """Return the artifacts that :func:`source_accuracy` reads.

    ``source_accuracy`` also reads the decoded test images. They are an input of both artifacts, so they are built too.
    """
    return Head(backbone, dataset, image_size), TestFeatures(backbone, dataset, image_size)


def source_accuracy(
    tensors: Mapping[str, Tensor], backbone: BackboneRef, dataset: DatasetRef, cache: ArtifactCache
) -> dict[str, Any]:
    """Return the test accuracies, in per cent, of a fine-tuned and of the frozen tower, and the number of test images.

    ``tensors``: the weights of the fine-tuned tower, by their names in open_clip's image tower.
    """
    frozen = cache.backbone(backbone)
    tower = frozen.tower.copy(trainable=tensors)
    tower.load_open_clip(tensors)
    head, features = accuracy_inputs(backbone, dataset, frozen.input_size)
    images = cache.get(Images(dataset, "test", frozen.input_size))
    frozen_ND, total = cache.get(features), len(images)
    classify = CosineClassifier(cache.get(head), frozen.logit_scale)
    with ReadAhead(lambda batch: images.batch(*batch), scoring_batches(total), cache.device) as pixels:
        tuned = predict_classes(total, lambda *batch: frozen.encode_images(pixels(batch), tower), classify)
    zero_shot = predict_classes(total, lambda start, stop: frozen_ND[start:stop].to(cache.device), classify)
    labels = torch.from_numpy(images.labels)
    of_tuned, of_frozen = (accuracy(found.all_classes, labels) for found in (tuned, zero_shot))
    return {"accuracy_fine_tuned": of_tuned, "accuracy_zero_shot": of_frozen, "test_images": total}
