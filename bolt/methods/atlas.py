"""aTLAS: learns one coefficient per source and tensor of the image tower (Zhang et al., 2024, arXiv:2407.02880).

``theta_p = theta0_p + sum_n lambda_np tau_np`` for every tensor p of the tower: weight matrices, biases, layer norms,
the convolution and the embeddings. tau_n is the task vector of source n. Only the coefficients lambda are trained. They
start at zero, which is the zero-shot tower. The text head stays frozen.

aTLAS x K (setting ``partitions``) splits the entries of every two-dimensional tensor at random into K groups, and
learns one coefficient per source, tensor and group. All sources, and all tensors of the same shape, share one split.
Tensors that are not two-dimensional then stay at their pre-trained values.

As in the official code: AdamW with learning rate 0.1 and weight decay 0.1, a cosine schedule without warm-up, and a
support that is repeated in other views until an epoch has 10 batches. What differs from the official code:

- Training takes 20 epochs of batches of 32, the defaults of :class:`bolt.training.loop.TrainingRecipe`. The official
  code takes 10 epochs of batches of 128.
- The last epoch is kept. The official code keeps the epoch with the best accuracy on a labelled validation split, which
  a few-shot task does not have.
- At test time, one epoch at a learning rate of 1e-2 replaces 10 epochs at 1e-3, so a coefficient can move equally far.
- The switch ``atlas: as_published`` follows the BOLT authors' code: it does not repeat the support, clips the scaled
  gradient, and makes a step only after a full group of batches (:class:`bolt.training.loop.ReferenceDeviations`).
- The switch ``atlas_tta: as_published`` sets the coefficients back to zero before scoring, as the BOLT authors do.

Shape legend: N sources, P composed tensors, K groups, M numbers of a tensor, B batch, S image side, D embedding width.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from bolt.clip.tensor_names import PROJECTION
from bolt.methods.base import TowerPasses, register_tower_training
from bolt.methods.common.composition import Composition, stack_task_vectors, trainable_composition
from bolt.methods.common.merging import required_sources
from bolt.seeds import torch_generator
from bolt.task.task import Adapted, Task
from bolt.training.adaptation import adapted, oversampling, train
from bolt.training.loop import NO_DEVIATIONS, ReferenceDeviations, TrainingRecipe
from bolt.util.ranges import AtLeast0

MIN_BATCHES = 10


@dataclass(frozen=True)
class AtlasSettings(TrainingRecipe):
    """The settings of aTLAS: the training recipe, and how the task vectors are split and stored.

    Attributes:
        partitions: the number K of groups in aTLAS x K; 0 is aTLAS itself, one coefficient per tensor.
        storage: type in which the task vectors are held in memory. The official code uses ``float16``, which takes half
            the memory and keeps three significant digits.
    """

    learning_rate: float = 0.1
    weight_decay: float = 0.1
    warmup_fraction: float = 0.0
    partitions: AtLeast0 = 0
    storage: Literal["float32", "float16"] = "float32"


def random_groups(tensors: Mapping[str, Tensor], group_count: int, *axes: str | int) -> dict[str, Tensor]:
    """Draw a group for every entry of every tensor, uniformly and independently; return int64 tensors by name.

    Tensors of one shape have the same groups, because the seed depends on ``group_count``, ``axes`` and the shape
    only. ``tensors`` are in the tower's orientation. The groups of ``proj`` are drawn in open_clip's orientation, which
    is the transpose.
    """
    groups = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape)[::-1] if name == PROJECTION else tuple(tensor.shape)
        generator = torch_generator("atlas partition", group_count, *shape, *axes)
        drawn = torch.randint(group_count, shape, generator=generator)
        groups[name] = drawn.T if name == PROJECTION else drawn
    return groups


def make_composition(task: Task, settings: AtlasSettings) -> Composition:
    """Return the tower's tensors as functions of the coefficients. Raises ``ValueError`` without sources."""
    sources, tower = required_sources(task), task.backbone.tower
    base = tower.own_tensors()
    groups = None
    if settings.partitions:
        base = {name: tensor for name, tensor in base.items() if tensor.ndim == 2}
        groups = random_groups(base, settings.partitions, task.dataset, task.seed)

    def stack() -> dict[str, Tensor]:
        return stack_task_vectors(tower, sources, base, getattr(torch, settings.storage))

    # With groups, the composition sorts the stacks in place by this task's groups, so other tasks cannot use them.
    stacks = stack() if groups else sources.cached(("task vectors", settings.storage), stack)
    return Composition(base, stacks, groups, settings.partitions or 1)


def _tower_passes(support_size: int, settings: AtlasSettings) -> TowerPasses:
    copies = oversampling(support_size, settings.batch_size, MIN_BATCHES) if support_size else 0
    return TowerPasses(training=settings.epochs * support_size * copies)


@register_tower_training(
    title="aTLAS",
    palette=4,
    summary="trains a coefficient for every source and tensor",
    paper="https://arxiv.org/abs/2407.02880",
    tracks=frozenset({"fewshot", "ood", "tta", "meta"}),
    track_defaults={"tta": {"epochs": 1, "learning_rate": 1e-2}},
    uses_sources=True,
    tower_passes=_tower_passes,
)
def adapt(task: Task, settings: AtlasSettings) -> Adapted:
    """Train the coefficients on the support or, at test time, on the unlabelled images."""
    composition = make_composition(task, settings)
    trainable = trainable_composition(task.backbone.tower, composition)
    published = task.protocol.atlas == "as_published"
    theirs = ReferenceDeviations(gradient_scale=65536, step_on_full_batches=True)
    min_batches, deviations = (1, theirs) if published else (MIN_BATCHES, NO_DEVIATIONS)
    result = train(task, trainable, settings, min_batches=min_batches, deviations=deviations)
    lambda_NPK = composition.coefficients.detach()
    if task.unlabelled is not None and task.protocol.atlas_tta == "as_published":
        lambda_NPK.zero_()
        result = adapted(task, trainable)
    coefficients = lambda_NPK if settings.partitions else lambda_NPK.squeeze(-1)
    details = {"coefficients": coefficients.numel(), "sources": len(coefficients), "tensors": len(composition.names)}
    return replace(result, details=details, coefficients={"lambda": coefficients.clone()})
