"""Linear probe: a linear head on frozen features, trained from the zero-shot head (Radford et al., 2021).

``logits = scale * (W f + b)`` for a unit feature f. W starts at the text embeddings and b at zero; both are trained by
cross-entropy.

The learning rate: AdamW moves every number by about the learning rate per step, however small the number is. So one
step can change a logit by up to ``rate * scale * sqrt(D)``, and the effect of a rate depends on the backbone. A rate of
1e-3 changes a logit of CLIP (scale 100, D = 512) by 2.3 per step, which is enough to lose the text within a few dozen
steps. The candidates are therefore given as ``logit_steps``, the change of a logit per step.

No single rate fits a weak and a good text head, or ten and a thousand classes. So the rate is chosen by
cross-validation on the support: the rate that is most accurate on held-out images; ties go to the smallest.

If a class has a single image, this image cannot be held out. Then the rate is chosen so that all steps together move a
class's unit vector by ``one_shot_move`` at most. With a fixed rate, the vectors would move further the more classes
there are, because more classes give more steps. ``one_shot_move`` was chosen on sixteen datasets of drawn pictures,
with one training image per class as the support, twenty steps, and fifteen other training images per class held out.
Mean accuracy on these: 55.3 % zero-shot; 58.2, 63.5, 67.2 and 60.8 % with moves of 0.05, 0.16, 0.47 and 1.57, at the
logit scale of the demo's tiny tower, 31.8.

The best move depends little on the logit scale. With CLIP's scale of 100 in place of 31.8, on fifteen of these datasets
and two draws, moves of 0.15, 0.3, 0.5 and 0.9 give 62.9, 67.4, 67.2 and 64.6 %; with batches of four images they give
60.6, 64.2, 67.6 and 68.7 %. So the move is fixed, not the change of a logit: a change of 15 is a move of 0.47 at the
tiny tower's scale, but of 0.15 at CLIP's.

``search: fixed`` uses ``learning_rate`` without a search. So does the switch ``linear_probe: as_published``, which
follows the BOLT authors' code:

- The factor 100 is multiplied into W, whose entries are then about 4, and the learning rate halves after every epoch.
  All epochs together move W as far as two epochs at the first rate. That changes a head with such large entries little,
  so the authors' linear probe is almost the zero-shot classifier.
- The authors tried the learning rates 1e-3 and 1e-4 and kept the better one on the test split. ``candidates`` are these
  two rates.

Shape legend: N support images, M images that a fold trains on, H images that a fold holds out, B batch, R rates, F
folds, C classes, D joint embedding width, E = D + 1 with the bias.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from bolt.methods.base import Idle, register
from bolt.methods.common.cross_validation import (
    NO_HOLD_OUT,
    FoldStack,
    compared_with_zero_shot,
    fewest_images,
    fold_stacks,
    summed,
)
from bolt.methods.common.frozen_features import train_on_features, unit_support_features
from bolt.task.classifiers import LinearClassifier, append_one
from bolt.task.task import Adapted, Task
from bolt.training.loop import TrainingRecipe, adamw, cross_entropy, fit
from bolt.util.ranges import NOT_EMPTY, AtLeast2, Positive


@dataclass(frozen=True)
class LinearProbeSettings(TrainingRecipe):
    """The training recipe, and how its learning rate is chosen.

    Attributes:
        search: ``support`` chooses the learning rate among ``logit_steps``; ``fixed`` uses ``learning_rate``.
        logit_steps: candidates for the largest change of a logit in one step, ``rate * logit scale * sqrt(D)``.
        one_shot_move: how far all steps together may move a class's unit vector, if a class has a single image.
        folds: number of folds of the cross-validation; fewer if a class has fewer images.
    """

    search: Literal["support", "fixed"] = "support"
    logit_steps: Annotated[tuple[Positive, ...], NOT_EMPTY] = (0.075, 0.25, 0.75, 2.25)
    one_shot_move: Positive = 0.47
    folds: AtLeast2 = 4


_SEARCHED = ("logit_steps", "one_shot_move", "folds")
"""The settings of the search for the learning rate."""


def _candidates(settings: LinearProbeSettings) -> tuple[LinearProbeSettings, ...]:
    """Return the authors' sweep: the given learning rate and a tenth of it."""
    fixed = replace(settings, search="fixed")
    return fixed, replace(fixed, learning_rate=settings.learning_rate / 10)


@register(
    title="Linear probe",
    palette=0,
    summary="trains a linear head on frozen features, from the text head",
    paper="https://arxiv.org/abs/2103.00020",
    version=3,
    baseline_crop=True,
    candidates=_candidates,
    support_feature_views=lambda settings: settings.epochs,
    idle=(
        Idle(
            ("learning_rate",), {"search": "fixed", "config_selection": "best_on_test", "linear_probe": "as_published"}
        ),
        Idle(_SEARCHED, {"search": "support"}),
        Idle(("search", *_SEARCHED), {"config_selection": "fixed"}, noted=True),
        Idle(
            ("search", *_SEARCHED, "schedule", "warmup_fraction", "warmup_steps"), {"linear_probe": "sound"}, noted=True
        ),
    ),
)
def adapt(task: Task, settings: LinearProbeSettings) -> Adapted:
    """Choose the learning rate, then train the head on the whole support."""
    if task.protocol.linear_probe == "as_published" or settings.search == "fixed":
        return _train(task, settings, {})
    root = task.head_CD.shape[1] ** 0.5
    if fewest_images(task.support.labels_N) < 2:
        rate = settings.one_shot_move / (root * settings.steps(len(task.support)))
        return _train(task, replace(settings, learning_rate=rate), {"learning_rate": rate, "search": NO_HOLD_OUT})
    rates = [step / (task.backbone.logit_scale * root) for step in sorted(settings.logit_steps)]
    correct = held_out_correct(task, settings, rates)
    rate = rates[correct.index(max(correct))]
    details = {"learning_rate": rate, "search": "cross-validation", **compared_with_zero_shot(task, max(correct))}
    return _train(task, replace(settings, learning_rate=rate), details)


def held_out_correct(task: Task, settings: LinearProbeSettings, rates: Sequence[float]) -> list[int]:
    """Count the held-out support images that each rate classifies correctly.

    All rates and folds are trained at once if the protocol keeps the last epoch. Otherwise each rate and each fold is
    trained by itself, because each has a best epoch of its own.
    """
    together = task.protocol.epoch_selection == "last"
    numbers = len(rates) * len(task.head_CD) * (task.head_CD.shape[1] + 1) if together else math.inf
    stacks = list(fold_stacks(task, settings.folds, numbers))
    groups = [rates] if together else [[rate] for rate in rates]
    return [hits for group in groups for hits in summed(_correct(task, settings, group, each) for each in stacks)]


def _correct(task: Task, settings: LinearProbeSettings, rates: Sequence[float], stack: FoldStack) -> Tensor:
    """Train a head for every rate and fold; return how many held-out images each rate classifies correctly, (R,)."""
    labels_N = task.support.labels_N.to(task.backbone.device)
    start_CE = F.pad(task.head_CD.to(task.backbone.device), (0, 1))
    heads_FCE = [start_CE.repeat(len(stack.kept_FM), 1, 1).requires_grad_() for _ in rates]
    unit = lru_cache(maxsize=1)(lambda epoch: unit_support_features(task, epoch + 1))

    def logits(unit_FBD: Tensor) -> Tensor:
        return task.backbone.logit_scale * append_one(unit_FBD) @ torch.stack(heads_FCE).mT  # (R, F, B, C)

    def loss_of_rows(epoch: int, rows_BF: Tensor) -> Tensor:
        """Return the sum of the heads' mean losses, so that each head gets the gradient of its own loss alone."""
        rows_FB = rows_BF.T
        logits_RFBC = logits(unit(epoch)[rows_FB])
        labels_RFB = labels_N[rows_FB].expand(logits_RFBC.shape[:-1])
        return labels_RFB[..., 0].numel() * cross_entropy(logits_RFBC.flatten(0, -2), labels_RFB.flatten())

    def order(epoch: int) -> Tensor:
        unit(epoch)  # reads the epoch's features now, so that no step waits for them
        return stack.order(epoch).T

    def clipped_adamw(groups: list[dict[str, Any]], recipe: TrainingRecipe) -> torch.optim.Optimizer:
        optimiser = adamw(groups, recipe)
        if settings.clip_norm:
            optimiser.register_step_pre_hook(lambda *step: _clip_each(heads_FCE, settings.clip_norm))
        return optimiser

    recipe = replace(settings, learning_rate=1.0, clip_norm=0.0)
    fit(heads_FCE, loss_of_rows, order, recipe, task.protocol, relative_rates=rates, make_optimiser=clipped_adamw)
    with torch.no_grad():
        return stack.correct(logits(stack.queries_FHD))


def _clip_each(heads_FCE: Sequence[Tensor], norm: float) -> None:
    """Clip the gradient of each head separately, as :func:`bolt.training.loop.clip_gradient` would for one head."""
    for head_FCE in heads_FCE:
        assert head_FCE.grad is not None
        norms_F11 = head_FCE.grad.flatten(1).norm(dim=1)[:, None, None]
        head_FCE.grad.mul_((norm / (norms_F11 + 1e-6)).clamp_max(1.0))


def _train(task: Task, recipe: TrainingRecipe, details: dict[str, float | int | str]) -> Adapted:
    """Train the head on the support, as the task's protocol says. Every epoch has an augmented view of its own."""
    scale, device = task.backbone.logit_scale, task.backbone.device
    weight_scale = 1.0
    if task.protocol.linear_probe == "as_published":
        weight_scale, recipe = scale, replace(recipe, schedule="halving")
    weight_CD = (weight_scale * task.head_CD.to(device)).requires_grad_()
    bias_C = torch.zeros(len(weight_CD), device=device, requires_grad=True)
    classifier = LinearClassifier(weight_CD, bias_C, scale / weight_scale)
    return replace(train_on_features(task, [weight_CD, bias_C], lambda: classifier, recipe), details=details)
