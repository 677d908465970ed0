"""Stage ``features``: everything the frozen backbone says about a dataset, encoded once."""

from __future__ import annotations

import torch

from bolt.clip.tensor_files import save_tensors
from bolt.task.task import EVALUATION_VIEW
from orchestrator.artifacts.kinds import Head, SupportFeatures, TestFeatures
from orchestrator.artifacts.workbench import Workbench
from orchestrator.catalog import templates
from orchestrator.store import Builder

BATCH = 256


def build_head(need: Head, bench: Workbench, builder: Builder) -> None:
    """The zero-shot head (C, D) from the dataset's class words and prompts."""
    entry = bench.dataset_entry(need.dataset)
    names = bench.class_names(need.dataset, need.image_size)
    prompts = templates(entry)
    head_CD = bench.backbone(need.backbone).zero_shot_head(names, prompts)
    save_tensors({"head": head_CD.cpu().contiguous()}, builder.folder / "head.safetensors")
    builder.meta.update(class_names=list(names), prompts=list(prompts))


def build_test_features(need: TestFeatures, bench: Workbench, builder: Builder) -> None:
    """The frozen features of the test split, (N, D) float32."""
    images = bench.images(need.dataset, "test", need.image_size)
    backbone = bench.backbone(need.backbone)
    batches = [
        backbone.encode_images(images.batch(start, min(start + BATCH, len(images)))).cpu()
        for start in range(0, len(images), BATCH)
    ]
    save_tensors({"features": torch.cat(batches).contiguous()}, builder.folder / "features.safetensors")
    builder.meta.update(images=len(images))


def build_support_features(need: SupportFeatures, bench: Workbench, builder: Builder) -> None:
    """The frozen features of the largest support and its views, (V + 1, N, D) float32, rows by training index."""
    pictures = bench.support_pictures(need.support)
    backbone = bench.backbone(need.backbone)
    features_VND = torch.stack(
        [
            backbone.encode_images(pictures.pixels(view, pictures.indices, need.image_size, need.family)).cpu()
            for view in range(EVALUATION_VIEW, need.views + 1)
        ]
    )
    tensors = {"features_VND": features_VND.contiguous(), "indices_N": torch.from_numpy(pictures.indices)}
    save_tensors(tensors, builder.folder / "features.safetensors")
    builder.meta.update(images=len(pictures.indices), views=need.views)
