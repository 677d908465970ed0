"""Stage ``features``: everything the frozen backbone says about a dataset, encoded once."""

from __future__ import annotations

import torch

from bolt.clip.tensor_files import save_tensors
from bolt.task.task import EVALUATION_VIEW
from orchestrator.artifacts.kinds import Head, SupportFeatures, TestFeatures
from orchestrator.artifacts.loaded import LoadedArtifacts
from orchestrator.catalog import prompt_templates
from orchestrator.store import Builder

BATCH = 256


def build_head(spec: Head, loaded: LoadedArtifacts, builder: Builder) -> None:
    """The zero-shot head (C, D) from the dataset's class words and prompts."""
    entry = loaded.dataset_entry(spec.dataset)
    names = loaded.class_names(spec.dataset, spec.image_size)
    prompts = prompt_templates(entry)
    head_CD = loaded.backbone(spec.backbone).zero_shot_head(names, prompts)
    save_tensors({"head": head_CD.cpu().contiguous()}, builder.folder / "head.safetensors")
    builder.meta.update(class_names=list(names), prompts=list(prompts))


def build_test_features(spec: TestFeatures, loaded: LoadedArtifacts, builder: Builder) -> None:
    """The frozen features of the test split, (N, D) float32."""
    images = loaded.images(spec.dataset, "test", spec.image_size)
    backbone = loaded.backbone(spec.backbone)
    batches = [
        backbone.encode_images(images.batch(start, min(start + BATCH, len(images)))).cpu()
        for start in range(0, len(images), BATCH)
    ]
    save_tensors({"features": torch.cat(batches).contiguous()}, builder.folder / "features.safetensors")
    builder.meta.update(images=len(images))


def build_support_features(spec: SupportFeatures, loaded: LoadedArtifacts, builder: Builder) -> None:
    """The frozen features of the largest support and its views, (V + 1, N, D) float32, rows by training index."""
    pictures = loaded.support_pictures(spec.support)
    backbone = loaded.backbone(spec.backbone)
    features_VND = torch.stack(
        [
            backbone.encode_images(pictures.pixels(view, pictures.indices, spec.image_size, spec.family)).cpu()
            for view in range(EVALUATION_VIEW, spec.views + 1)
        ]
    )
    tensors = {"features_VND": features_VND.contiguous(), "indices_N": torch.from_numpy(pictures.indices)}
    save_tensors(tensors, builder.folder / "features.safetensors")
    builder.meta.update(images=len(pictures.indices), views=spec.views)
