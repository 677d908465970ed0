"""Synthetic towers, methods and training steps that ``gpu.py`` measures, and at which scale. Not a command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.clip.precision import forward_pass
from bolt.clip.precision import training_step as as_a_cell
from bolt.clip.tower import ImageTower, matrix_modules
from bolt.clip.tower_shape import TowerShape
from bolt.methods.common.adapters import AdapterSettings, attach_to_tower
from bolt.methods.common.composed_tower import tensors_by_open_clip_name, trainable_composition
from bolt.methods.common.composition import Composition
from bolt.protocol import Precision
from bolt.spectral.bases import Basis
from bolt.spectral.directions import directions_per_source
from bolt.spectral.spectral_linear import attach_coefficients
from bolt.training.adaptation import trainable_tower
from bolt.training.trainable import Trainable

Row = dict[str, Any]
CLASSES = 100
TOP_K = 12


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        towers: by name.
        batch: images of a training step.
        cell_steps: steps of the cell that is repeated.
        repeats: how often a step, a copy or a product is timed.
        sources: task vectors of aTLAS, and sources of BOLT's bases.
        photograph: height and width of the images that views are made of.
        processes: how many share the GPU, one after the other.
        seconds: how long they do.
    """

    towers: dict[str, TowerShape]
    batch: int
    cell_steps: int
    repeats: int
    sources: int
    photograph: tuple[int, int]
    processes: tuple[int, ...]
    seconds: float


_TINY_TOWER = TowerShape(32, 8, 32, 1, 2, 64, 16, "quick_gelu")
SCALES = {
    "full": Scale(
        {
            "B/32": TowerShape(224, 32, 768, 12, 12, 3072, 512, "quick_gelu"),
            "B/16": TowerShape(224, 16, 768, 12, 12, 3072, 512, "quick_gelu"),
            "L/14": TowerShape(224, 14, 1024, 24, 16, 4096, 768, "quick_gelu"),
        },
        batch=32, cell_steps=50, repeats=20, sources=16, photograph=(375, 500), processes=(1, 4, 8, 16), seconds=8.0,
    ),
    "small": Scale(
        {"small": TowerShape(64, 16, 128, 4, 4, 512, 64, "quick_gelu")},
        batch=16, cell_steps=10, repeats=5, sources=8, photograph=(375, 500), processes=(1, 2), seconds=2.0,
    ),
    "tiny": Scale(
        {"tiny": _TINY_TOWER},
        batch=4, cell_steps=2, repeats=1, sources=2, photograph=(40, 60), processes=(2,), seconds=0.1,
    ),
}  # fmt: skip


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def random_tower(shape: TowerShape, device: str) -> ImageTower:
    """A frozen tower with weights of a realistic size."""
    generator = torch.Generator(device).manual_seed(0)
    tower = ImageTower(shape).to(device)
    with torch.no_grad():
        for name, tensor in tower.named_parameters():
            if tensor.ndim > 1:
                tensor.normal_(generator=generator).mul_(tensor[0].numel() ** -0.5)
            else:
                tensor.fill_(float("ln_" in name and name.endswith("weight")))
    return tower.requires_grad_(False)


def bolt_tower(tower: ImageTower, sources: int) -> Trainable:
    """The tower with coefficients on random bases of the rank that so many sources give."""
    generator = torch.Generator(tower.class_embedding.device).manual_seed(1)
    bases, start = {}, {}
    for name, linear in matrix_modules(tower).items():
        m, n = linear.weight.shape if name != "proj" else linear.weight.T.shape
        rank = sources * directions_per_source(TOP_K, min(m, n), sources)
        random = (torch.empty(size, rank, device=linear.weight.device).normal_(generator=generator) for size in (m, n))
        bases[name] = Basis(*(torch.linalg.qr(each)[0] for each in random))
        start[name] = 0.05 * torch.empty(rank, device=linear.weight.device).normal_(generator=generator)
    spectral, coefficients = attach_coefficients(tower, bases, start)
    return Trainable(spectral, list(coefficients.values()), lambda: spectral)


def lora_tower(tower: ImageTower, sources: int) -> Trainable:
    twin = tower.copy()
    attach_to_tower(twin, AdapterSettings(), False, "benchmark")
    return Trainable(twin, [tensor for tensor in twin.parameters() if tensor.requires_grad], lambda: twin)


def full_tower(tower: ImageTower, sources: int) -> Trainable:
    return trainable_tower(tower.copy(trainable=tower.state_dict_open_clip()))


def atlas_tower(tower: ImageTower, sources: int) -> Trainable:
    base = tensors_by_open_clip_name(tower, tower.state_dict_open_clip())
    generator = torch.Generator(tower.class_embedding.device).manual_seed(5)
    stacks = {
        name: 1e-3 * torch.randn(sources, t.numel(), device=t.device, generator=generator) for name, t in base.items()
    }
    return trainable_composition(tower, Composition(base, stacks))


METHODS: dict[str, Callable[[ImageTower, int], Trainable]] = {
    "bolt": bolt_tower, "lora": lora_tower, "full_finetune": full_tower, "atlas": atlas_tower,
}  # fmt: skip


def precisions(device: str) -> tuple[Precision, ...]:
    """TF32 exists on GPUs only."""
    return ("float32", "tf32", "bfloat16") if device == "cuda" else ("float32", "bfloat16")


def training_step(
    trainable: Trainable, shape: TowerShape, precision: Precision = "float32", deterministic: bool = True
) -> Callable[[Tensor, Tensor], None]:
    """Return ``step(images, labels)``: forward, backward, clipping and AdamW.

    It computes as a cell does, with deterministic kernels on a GPU unless ``deterministic`` is false.
    """
    trained = trainable.parameters
    device = trained[0].device
    head_CD = torch.empty(CLASSES, shape.embed_dim, device=device)
    head_CD = F.normalize(head_CD.normal_(generator=torch.Generator(device).manual_seed(2)), dim=-1)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True)

    def step(images_B3SS: Tensor, labels_B: Tensor) -> None:
        with as_a_cell(precision, device) if deterministic else nullcontext():
            optimiser.zero_grad(set_to_none=True)
            with forward_pass(precision, device):
                features_BD = trainable.encode(images_B3SS)
            F.cross_entropy(100 * F.normalize(features_BD.float(), dim=-1) @ head_CD.T, labels_B).backward()
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
            optimiser.step()

    return step


def random_batch(shape: TowerShape, batch: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(batch, 3, shape.image_size, shape.image_size, generator=generator)
    return images.to(device), torch.randint(CLASSES, (batch,), generator=generator).to(device)
