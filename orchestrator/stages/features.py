"""Stage ``features``: everything the frozen backbone says about a dataset, encoded once."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from bolt.support import draw_support
from orchestrator.catalog import templates
from orchestrator.stages.artifacts import Head, SupportFeatures, TestFeatures
from orchestrator.store import Builder
from orchestrator.workbench import Workbench, support_features

BATCH = 256


def build_head(need: Head, bench: Workbench, builder: Builder) -> None:
    """The zero-shot head (C, D) from the dataset's class words and prompts."""
    entry = bench.dataset_entry(need.dataset)
    names = bench.class_names(need.dataset, need.image_size)
    prompts = templates(entry)
    head_CD = bench.backbone(need.backbone).zero_shot_head(names, prompts)
    save_file({"head": head_CD.cpu().contiguous()}, builder.folder / "head.safetensors")
    builder.meta.update(class_names=list(names), prompts=list(prompts))


def build_test_features(need: TestFeatures, bench: Workbench, builder: Builder) -> None:
    """The frozen features of the test split, (N, D) float32."""
    images = bench.images(need.dataset, "test", need.image_size)
    backbone = bench.backbone(need.backbone)
    batches = [
        backbone.encode_images(images.batch(start, min(start + BATCH, len(images)))).cpu()
        for start in range(0, len(images), BATCH)
    ]
    save_file({"features": torch.cat(batches).contiguous()}, builder.folder / "features.safetensors")
    builder.meta.update(images=len(images))


def build_support_features(need: SupportFeatures, bench: Workbench, builder: Builder) -> None:
    """The frozen features of the largest support and its views, (V + 1, N, D) float32, rows by training index."""
    images = bench.images(need.dataset, "train", need.image_size)
    drawn = draw_support(
        images.labels, need.shots, dataset=need.dataset.name, seed=need.seed, short_classes="take_all"
    )
    indices = sorted(int(i) for i in drawn)
    features_VND = support_features(
        images, torch.tensor(indices).numpy(), need.views, bench.backbone(need.backbone), need.dataset.name, need.seed
    )
    tensors = {"features_VND": features_VND.contiguous(), "indices_N": torch.tensor(indices)}
    save_file(tensors, builder.folder / "features.safetensors")
    builder.meta.update(images=len(indices), views=need.views)
