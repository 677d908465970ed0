"""Stage ``meta``: an image tower meta-learned on other datasets' training images.

Shape legend: N images, S image side.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bolt.clip.augment import augmented_view
from bolt.clip.tensor_files import save_tensors
from bolt.training.meta import REPORT_INTERVAL, MetaTask, meta_learn
from orchestrator.artifacts import kinds as artifacts
from orchestrator.artifacts.kinds import MetaStart
from orchestrator.artifacts.loaded import LoadedArtifacts, crop_of
from orchestrator.core.cell import DatasetRef
from orchestrator.store import Builder

META_SEED = 0
"""A start is meta-learned once; its episodes and crops are keyed by this."""


def build_meta_start(spec: MetaStart, loaded: LoadedArtifacts, builder: Builder) -> None:
    """Meta-learn a start on the training splits of the datasets."""
    kept = builder.snapshots.load()
    curve: list[float] = kept["meta_loss"] if kept else []

    def on_interval_end(interval: int, state: Callable[[], dict[str, Any]]) -> None:
        builder.progress(min((interval + 1) * REPORT_INTERVAL, spec.recipe.steps), spec.recipe.steps)
        builder.snapshots.save_if_due(
            lambda: {"training": state(), "meta_loss": curve}, loaded.settings.snapshot_seconds
        )

    tensors = meta_learn(
        loaded.backbone(spec.backbone),
        [_task(spec, dataset, loaded) for dataset in spec.datasets],
        spec.recipe,
        seed=META_SEED,
        report=lambda interval, metrics: curve.append(metrics["meta_loss"]),
        on_interval_end=on_interval_end,
        resume=kept["training"] if kept else None,
    )
    save_tensors(
        {name: value.detach().cpu().contiguous() for name, value in tensors.items()},
        builder.folder / "tower.safetensors",
    )
    builder.meta.update(
        backbone=spec.backbone.name, datasets=[dataset.name for dataset in spec.datasets], meta_loss=curve
    )


def _task(spec: MetaStart, dataset: DatasetRef, loaded: LoadedArtifacts) -> MetaTask:
    images = loaded.images(dataset, "train", spec.image_size)
    crop = crop_of(artifacts.Views(light=True, mirror=False))

    def pixels(view: int, rows: Tensor) -> Tensor:
        return torch.stack(
            [
                augmented_view(images.image(row), spec.image_size, dataset.name, META_SEED, view, row, crop)
                for row in rows.tolist()
            ]
        )

    head_CD = loaded.head(spec.backbone, dataset)
    return MetaTask(dataset.name, head_CD, torch.from_numpy(images.labels), pixels)
