"""AdaMerging: learns coefficients of task vectors that make the predictions certain (Yang et al., ICLR 2024).

Paper: arXiv:2310.02575. The tower is ``theta_0 + sum_t clamp(lambda_tp, 0, 1) tau_tp`` for every tensor p and source t.
The coefficients lambda start at 0.3. There are 500 steps of Adam at a rate of 1e-3. Each step draws two batches of 16
unlabelled test images. The frozen text head predicts their classes, and the loss is the sum of the two batches' mean
entropies. A coefficient that leaves [0, 1] gets no more gradient. All numbers are the official ones, which are the same
for all datasets; no label is used. ViT-B has 152 coefficients per source, ViT-L/14 has 296.

What differs: the official code merges models of several tasks, and sums the loss over test images of the same tasks.
Here there is one task, and no source is a model of that task.

Low entropy can also mean that every image is put into one class. ``details`` give the share of the most frequent
predicted class in the last steps, and the share of coefficients at zero.

Shape legend: S sources, P tensors, B images, C classes.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bolt.methods.base import TowerPasses, register
from bolt.methods.common.composition import Composition, stack_task_vectors, trainable_composition
from bolt.methods.common.merging import required_sources
from bolt.task.task import EVALUATION_VIEW, Adapted, Task
from bolt.training.adaptation import adapted
from bolt.training.loop import Curve, PlainRecipe, fit
from bolt.util.ranges import AtLeast1, Checked, Fraction, Positive

_BATCHES = 2
"""Batches per step."""
_LAST_STEPS = 50
"""Number of final steps whose predictions ``details`` describe."""


@dataclass(frozen=True)
class AdaMergingSettings(Checked):
    """The settings of AdaMerging.

    Attributes:
        steps: number of optimiser steps.
        batch_size: images in each of the two batches of a step.
        learning_rate: learning rate of Adam.
        initial: start of every coefficient.
        coefficients: one per source and tensor (``layer_wise``), or one per source (``task_wise``).
    """

    steps: AtLeast1 = 500
    batch_size: AtLeast1 = 16
    learning_rate: Positive = 1e-3
    initial: Fraction = 0.3
    coefficients: Literal["layer_wise", "task_wise"] = "layer_wise"


def summed_entropy(logits_BC: Tensor, batch_size: int) -> Tensor:
    """Split the rows into batches of ``batch_size``; return the sum of the batches' mean entropies, in nats."""
    entropy_B = -(logits_BC.softmax(dim=-1) * logits_BC.log_softmax(dim=-1)).sum(dim=-1)
    return torch.stack([batch.mean() for batch in torch.split(entropy_B, batch_size)]).sum()


def minimise_entropy(
    composition: Composition,
    logits_of: Callable[[Tensor], Tensor],
    order: Callable[[int], Tensor],
    settings: AdaMergingSettings,
    **options: Any,
) -> Curve:
    """Train the coefficients from ``settings.initial``; return the loss of every step.

    Args:
        logits_of: ``logits_of(rows)`` -> logits (B, C) of these images under the composed weights.
        order: ``order(step)`` -> the rows of a step, which are two batches, one after the other.
        options: ``report`` and ``precision`` of :func:`bolt.training.loop.fit`; an epoch is one step.

    Raises:
        bolt.training.loop.Diverged: if the loss or a coefficient becomes NaN or infinite.
    """
    with torch.no_grad():
        composition.coefficients.fill_(settings.initial)
    recipe = PlainRecipe(settings.steps, _BATCHES * settings.batch_size, settings.learning_rate, schedule="constant")

    def loss_of_rows(step: int, rows: Tensor) -> Tensor:
        return summed_entropy(logits_of(rows), settings.batch_size)

    return fit([composition.coefficients], loss_of_rows, order, recipe, **options)


@register(
    title="AdaMerging",
    palette=31,
    summary="learns a coefficient for every source and tensor by the entropy of predictions",
    paper="https://arxiv.org/abs/2310.02575",
    tracks=frozenset({"tta"}),
    uses_sources=True,
    changes_tower=True,
    tower_passes=lambda size, settings: TowerPasses(
        training=settings.steps * min(size, _BATCHES * settings.batch_size)
    ),
)
def adapt(task: Task, settings: AdaMergingSettings) -> Adapted:
    """Learn the coefficients on the test images. Raises ``ValueError`` if the task has no test images or no sources."""
    unlabelled, backbone = task.test_images, task.backbone
    base = backbone.tower.own_tensors()
    sources = required_sources(task)
    stacks = sources.cached(
        ("task vectors", "float32"), lambda: stack_task_vectors(backbone.tower, sources, base, torch.float32)
    )
    composition = Composition(base, stacks, tied=settings.coefficients == "task_wise", bounds=(0.0, 1.0))
    trainable = trainable_composition(backbone.tower, composition)
    classify = task.text_head.to(backbone.device)
    predicted: deque[Tensor] = deque(maxlen=_LAST_STEPS)

    def logits_of(rows: Tensor) -> Tensor:
        logits_BC = classify(trainable.encode(backbone.normalise(unlabelled.pixels(EVALUATION_VIEW, rows))))
        predicted.append(logits_BC.detach().argmax(dim=-1))
        return logits_BC

    def order(step: int) -> Tensor:
        return unlabelled.order("adamerging", step, len(unlabelled))[: _BATCHES * settings.batch_size]

    minimise_entropy(composition, logits_of, order, settings, report=task.report, precision=backbone.precision)
    lambda_SP = composition.coefficients.detach().squeeze(-1)
    used_SP = lambda_SP.clamp(0, 1)
    counts_C = torch.bincount(torch.cat([*predicted]))
    details = {
        "coefficients": lambda_SP.numel(),
        "mean_coefficient": round(float(used_SP.mean()), 4),
        "share_at_zero": round(float((used_SP == 0).float().mean()), 4),
        "share_of_commonest_class": round(float(counts_C.max() / counts_C.sum()), 4),
    }
    return adapted(task, trainable, details=details, coefficients={"lambda": used_SP.clone()})
