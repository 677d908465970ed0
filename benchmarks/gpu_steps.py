"""Synthetic towers, methods and training steps that ``gpu.py`` measures, and at which scale. Not a command."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

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
from bolt.training.captured import CapturedGradient, Recorder, launched_gradient
from bolt.training.trainable import Losses, Trainable

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
    trainable: Trainable,
    shape: TowerShape,
    precision: Precision = "float32",
    deterministic: bool = True,
    recorder: Recorder | None = None,
    counted: AbstractContextManager[Any] = nullcontext(),  # noqa: B008
    **optimiser_settings: Any,
) -> Callable[[Tensor, Tensor], Tensor]:
    """``step(images, labels)`` -> the loss before the step: forward, backward, clipping and AdamW.

    Computes as a cell does, with deterministic kernels on a GPU, unless it is told otherwise. With a ``recorder``, the
    forward and backward pass are captured as those of a cell with ``--cuda-graphs``. Clipping and optimiser run in the
    context ``counted``.
    """
    trained = trainable.parameters
    device = trained[0].device
    head_CD = torch.empty(CLASSES, shape.embed_dim, device=device)
    head_CD = F.normalize(head_CD.normal_(generator=torch.Generator(device).manual_seed(2)), dim=-1)
    optimiser = torch.optim.AdamW(trained, lr=1e-3, weight_decay=0.0, fused=True, **optimiser_settings)

    def step(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        with as_a_cell(precision, device) if deterministic else nullcontext():
            return update(images_B3SS, labels_B)

    def loss_of(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        with forward_pass(precision, device):
            features_BD = trainable.encode(images_B3SS)
        return F.cross_entropy(100 * F.normalize(features_BD.float(), dim=-1) @ head_CD.T, labels_B)

    batch: list[Tensor] = []
    losses = Losses(lambda epoch, rows: tuple(batch), loss_of, lambda epoch: torch.arange(1))
    gradient = launched_gradient(losses.of_rows) if recorder is None else CapturedGradient(losses, trainable, recorder)

    def update(images_B3SS: Tensor, labels_B: Tensor) -> Tensor:
        batch[:] = images_B3SS, labels_B
        optimiser.zero_grad(set_to_none=True)
        loss = gradient(0, labels_B, 1.0)
        with counted:
            torch.nn.utils.clip_grad_norm_(trained, 1.0, foreach=True)
            optimiser.step()
        return loss

    return step


_WITHOUT_A_KERNEL = frozenset(
    {"_unsafe_view", "empty", "promote_types", "_record_function_enter_new", "_record_function_exit"}
)


class Operations(TorchDispatchMode):
    """Counts the operations that a GPU would run a kernel for, among those that PyTorch dispatches."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func.overloadpacket.__name__ in _WITHOUT_A_KERNEL)
        return func(*args, **(kwargs or {}))


def count_operations(shape: TowerShape, method: str) -> tuple[int, int]:
    """Operations of a step's forward and backward pass, and of its clipping and optimiser, for so many blocks.

    Widths do not change them, so a narrow tower on the CPU is counted.
    """
    narrow = TowerShape(16, 8, 16, shape.layers, 2, 32, 8, "quick_gelu")
    update = Operations()
    step = training_step(METHODS[method](random_tower(narrow, "cpu"), 2), narrow, counted=update)
    batch = random_batch(narrow, 2, "cpu")
    step(*batch)  # the first step also makes the optimiser's state
    update.count = 0
    with Operations() as whole:
        step(*batch)
    return whole.count - update.count, update.count


def random_batch(shape: TowerShape, batch: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(batch, 3, shape.image_size, shape.image_size, generator=generator)
    return images.to(device), torch.randint(CLASSES, (batch,), generator=generator).to(device)
