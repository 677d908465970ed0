"""aTLAS: one learned coefficient per source and tensor of the image tower (Zhang et al., 2024).

theta_p = theta0_p + sum_n lambda_np tau_np for every tensor p: matrices, biases, layer norms, convolution, embeddings.
All lambdas start at zero, the zero-shot tower. aTLAS x K (``partitions``) gives every entry of a two-dimensional
tensor one of K random groups, by one map per shape that all tensors of the shape and all sources share, and each group
a coefficient; the other tensors then stay.

Epochs and batches are those of every trained method here, where aTLAS's authors take 10 epochs of 128. Theirs are the
rest: AdamW, rate 0.1, decay 0.1, a cosine without warm-up, and a support repeated in other views until an epoch has 10
batches. Their choice of the best epoch on validation labels is left out, since a few-shot task has none to spare.

At test time the authors train 10 epochs at rate 1e-3. One epoch at ten times the rate lets a coefficient go as far.

Shape legend: N sources, P composed tensors, K groups, M numbers of a tensor, B batch, S image side, D embedding width.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bolt.clip.tower import PROJECTION, ImageTower, tensor_names
from bolt.methods.base import Method, TowerPasses, register
from bolt.methods.common.composition import Composition
from bolt.seeds import torch_generator
from bolt.spectral.sources import Sources
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import adapted, oversampling, train
from bolt.training.loop import NO_MISTAKES, Mistakes, Recipe
from bolt.training.trainable import Trainable

LEAST_BATCHES = 10
_STORAGE = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class AtlasSettings(Recipe):
    """The training recipe, and:

    Attributes:
        partitions: K of aTLAS x K; 0 is aTLAS itself, a coefficient per tensor of any kind.
        storage: type of the stored task vectors; the authors' is ``float16``, half the memory at three digits.
    """

    learning_rate: float = 0.1
    weight_decay: float = 0.1
    warmup_fraction: float = 0.0
    partitions: int = 0
    storage: Literal["float32", "float16"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.partitions < 0:
            raise ValueError(f"partitions is not negative, unlike {self.partitions}")
        if self.storage not in _STORAGE:
            raise ValueError(f"storage is {' or '.join(_STORAGE)}, not {self.storage!r}")


def stack_task_vectors(
    tower: ImageTower, sources: Sources, names: Iterable[str], dtype: torch.dtype
) -> dict[str, Tensor]:
    """The sources' task vectors of the named tensors, each (N, M) on the tower's device, in the tower's orientation.

    ``names`` and the keys are open_clip's. One source at a time is in memory beside the stacks.

    Raises ``ValueError`` naming source and tensor where one is missing, of another shape, NaN, or too large for dtype.
    """
    own = composed_tensors(tower, names)
    stacks = {
        name: torch.empty(len(sources.names), tensor.numel(), dtype=dtype, device=tensor.device)
        for name, tensor in own.items()
    }
    for row, source in enumerate(sources.names):
        vector = sources.task_vector(source)
        for name, stack_NM in stacks.items():
            stored = own[name].shape[::-1] if name == PROJECTION else own[name].shape
            if name not in vector or vector[name].shape != stored:
                raise ValueError(f"the task vector of {source} has no tensor {name} of the shape {tuple(stored)}")
            value = vector[name].T if name == PROJECTION else vector[name]
            stack_NM[row].copy_(value.reshape(-1))
            if not torch.isfinite(stack_NM[row]).all():
                raise ValueError(f"the task vector of {source} is NaN, infinite or beyond {dtype} in {name}")
    return stacks


def composed_tensors(tower: ImageTower, names: Iterable[str]) -> dict[str, Tensor]:
    """The tower's own tensors (``proj`` in its orientation) by open_clip's names."""
    own, path = dict(tower.named_parameters()), tensor_names(tower.shape.layers)
    return {name: own[path[name]].detach() for name in names}


def random_maps(tensors: Mapping[str, Tensor], groups: int, *axes: str | int) -> dict[str, Tensor]:
    """Each entry's group, uniform and independent: one map per shape, keyed by ``axes`` and the shape.

    ``tensors`` are in the tower's orientation. The map of ``proj`` is drawn in open_clip's, whose shape counts.
    """
    maps = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)[::-1] if name == PROJECTION else tuple(tensor.shape)
        drawn = torch.randint(groups, shape, generator=torch_generator("atlas partition", groups, *shape, *axes))
        maps[name] = drawn.T if name == PROJECTION else drawn
    return maps


def compose(task: Task, settings: AtlasSettings) -> Composition:
    """The task's tower as a function of its sources' coefficients."""
    if task.sources is None or not task.sources.names:
        raise ValueError("aTLAS is made of the sources' task vectors, and this task has none")
    tower = task.backbone.tower
    names = tensor_names(tower.shape.layers)
    base = composed_tensors(tower, names)
    maps = None
    if settings.partitions:
        base = {name: tensor for name, tensor in base.items() if tensor.ndim == 2}
        maps = random_maps(base, settings.partitions, task.dataset, task.seed)
    stacks = stack_task_vectors(tower, task.sources, base, _STORAGE[settings.storage])
    return Composition(base, stacks, maps, settings.partitions or 1)


def trainable(tower: ImageTower, composition: Composition) -> Trainable:
    """The composed tower in training; ``composition`` is named as open_clip names tensors."""
    path = tensor_names(tower.shape.layers)

    def encode(images_B3SS: Tensor) -> Tensor:
        tensors = {path[name]: tensor for name, tensor in composition.tensors().items()}
        features_BD: Tensor = torch.func.functional_call(tower, tensors, (images_B3SS,))
        return features_BD

    def current() -> ImageTower:
        twin = tower.copy(trainable=composition.names).requires_grad_(False)
        own = composed_tensors(twin, composition.names)
        for name, tensor in composition.tensors().items():
            own[name].copy_(tensor.detach())
        return twin

    return Trainable(encode, [composition.coefficients], current)


def adapt(task: Task, settings: AtlasSettings) -> Adapted:
    """Train the coefficients on the support or, at test time, on the unlabelled images."""
    composition = compose(task, settings)
    composed = trainable(task.backbone.tower, composition)
    published = task.protocol.atlas == "as_published"
    train(
        task,
        composed,
        settings,
        least_batches=1 if published else LEAST_BATCHES,
        mistakes=Mistakes(gradient_scale=65536, step_on_full_batches=True) if published else NO_MISTAKES,
    )
    lambda_NPK = composition.coefficients.detach()
    if task.unlabelled is not None and task.protocol.atlas_tta == "as_published":
        lambda_NPK.zero_()
    kept = lambda_NPK if settings.partitions else lambda_NPK.squeeze(-1)
    details = {"coefficients": kept.numel(), "sources": len(kept), "tensors": len(composition.names)}
    return adapted(task, composed, details=details, coefficients={"lambda": kept.clone()})


def _tower_passes(support_size: int, settings: AtlasSettings) -> TowerPasses:
    copies = oversampling(support_size, settings.batch_size, LEAST_BATCHES) if support_size else 0
    return TowerPasses(training=settings.epochs * support_size * copies)


register(
    Method(
        name="atlas",
        title="aTLAS",
        paper="https://arxiv.org/abs/2407.02880",
        settings_class=AtlasSettings,
        adapt=adapt,
        tracks=frozenset({"fewshot", "ood", "tta", "meta"}),
        track_defaults={"tta": {"epochs": 1, "learning_rate": 1e-2}},
        uses_sources=True,
        changes_tower=True,
        tower_passes=_tower_passes,
        test_settings={"epochs": 2, "batch_size": 8},
    )
)
