"""Stage ``sources``: one fine-tuned image tower per backbone and dataset; a training that was killed goes on.

Shape legend: N images, C classes, S image side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from bolt.clip.augment import SOURCE_CROP, augmented_view
from bolt.clip.tensor_files import save_tensors
from bolt.task.support import batch_order
from bolt.training.finetune import finetune_source
from bolt.training.loop import TrainingRecipe
from orchestrator.artifacts.accuracy import source_accuracy
from orchestrator.artifacts.kinds import SourceModel
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.store import Builder

SOURCE_SEED = 0
"""Sources are fine-tuned once, on the whole training split; their order and crops are keyed by this."""


def build_source(spec: SourceModel, loaded: LoadedArtifacts, builder: Builder) -> None:
    """Fine-tune the whole image tower and note its accuracy on its own test split beside the frozen one's."""
    name = spec.dataset.name
    images = loaded.images(spec.dataset, "train", spec.image_size)
    backbone = loaded.backbone(spec.backbone)
    head_CD = loaded.head(spec.backbone, spec.dataset)
    recipe = TrainingRecipe(**asdict(spec.recipe))
    resume = builder.snapshots.load()
    curve = [row["train_loss"] for row in resume["curve"]] if resume else []

    def pixels(view: int, rows: Tensor) -> Tensor:
        return torch.stack(
            [
                augmented_view(images.image(i), spec.image_size, name, SOURCE_SEED, view, i, SOURCE_CROP)
                for i in rows.tolist()
            ]
        )

    def on_epoch_end(epoch: int, state: Callable[[], dict[str, Any]]) -> None:
        builder.progress(epoch + 1, recipe.epochs)
        builder.snapshots.save_if_due(state, loaded.settings.snapshot_seconds)

    tensors = finetune_source(
        backbone,
        head_CD,
        torch.from_numpy(images.labels),
        pixels,
        lambda epoch: batch_order(len(images), dataset=name, seed=SOURCE_SEED, epoch=epoch),
        recipe,
        lambda epoch, metrics: curve.append(metrics["train_loss"]),
        on_epoch_end=on_epoch_end,
        resume=resume,
    )
    save_tensors(
        {key: value.detach().cpu().contiguous() for key, value in tensors.items()}, builder.folder / "tower.safetensors"
    )

    builder.meta.update(
        dataset=name,
        backbone=spec.backbone.name,
        train_images=len(images),
        train_loss=curve,
        **source_accuracy(tensors, spec.backbone, spec.dataset, loaded),
    )
